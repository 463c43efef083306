"""Messages per second with the store in PostgreSQL, beside a directory and ActiveMQ's JDBC store.

All brokers stay up during the run and take turns on each row, as in bench.throughput; amq and ActiveMQ use the same
server. `--activemq` needs Debian's activemq and libpostgresql-jdbc-java. Give it a separate empty database on
127.0.0.1, as a role that may create tables and has no password (`trust`). The floor is that of a directory: it syncs
a file, and has no database.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit

from bench import brokers, cli, host, takeover
from bench.load import LoadError
from bench.throughput import FLOOR, ROWS, Effort, add_arguments, add_floor, measure, table

EXAMPLES = (
    "postgresql://bench@127.0.0.1/amq",
    "postgresql://bench@127.0.0.1/amq --takeover 8 --backlog 100000",
    "postgresql://bench@127.0.0.1/amq --activemq --row '4/4 window 256' --row '1/1 window 1'",
)
KEEP_ALIVE_MS = 2000  # of all brokers
DRIVER = "/usr/share/java/postgresql.jar"
JDBC_XML = """<amq:jdbcPersistenceAdapter dataSource="#sql" createTablesOnStartup="{create}" lockKeepAlivePeriod="2000">
        <amq:locker><amq:database-locker lockAcquireSleepInterval="1000"/></amq:locker>
      </amq:jdbcPersistenceAdapter>"""
SOURCE_XML = """<bean id="sql" class="org.postgresql.ds.PGPoolingDataSource">
    <property name="serverName" value="127.0.0.1"/><property name="portNumber" value="{port}"/>
    <property name="databaseName" value="{database}"/><property name="user" value="{user}"/>
    <property name="maxConnections" value="40"/>
  </bean>
</beans>"""


class SqlBroker(brokers.AmqBroker):
    """amq on the database."""

    kind = "amq-sql"

    def command(self) -> list[str]:
        return [self.url if word == str(self.store) else word for word in super().command()]


class JdbcBroker(brokers.ActiveMqBroker):
    """ActiveMQ on the same database: its JDBC store with its default locker and no journal before it."""

    kind = "activemq-sql"
    url = ""
    slave_line = re.compile("Attempting to acquire the exclusive lock")  # and waits in its SELECT … FOR UPDATE

    def command(self) -> list[str]:
        words = super().command()
        file = self.store.parent / f"{self.name}-base" / "broker.xml"
        text = file.read_text()
        begin, end = text.index("<amq:kahaDB"), text.index("</amq:kahaDB>") + len("</amq:kahaDB>")
        # Later starts would wait in the creation of the row of the lock, and not in the lock.
        adapter = JDBC_XML.format(create="true" if self.name == "b0" and self.process is None else "false")
        parts = urlsplit(self.url)
        source = SOURCE_XML.format(port=parts.port or 5432, database=parts.path[1:], user=parts.username or "")
        file.write_text((text[:begin] + adapter + text[end:]).replace("</beans>", source))
        at = words.index("-cp") + 1
        words[at] = f"{words[at]}:{DRIVER}"
        return words


def takeovers(args: argparse.Namespace, kinds: Sequence[str]) -> None:
    """Measure and show; a broker that fails does not take the figures of those before it with it."""
    results, failure = [], None
    for kind in kinds:
        try:
            results.append(
                takeover.measure(
                    kind,
                    args.backlog,
                    args.takeover,
                    1,
                    KEEP_ALIVE_MS,
                    args.dir,
                    cli.amq_options(args),
                    cli.progress,
                    ready=True,
                )
            )
        except (LoadError, brokers.BrokerProcessError) as error:
            failure = f"failed: {kind}: {error}"
            break
    cli.show(args, {"host": host.describe(args.dir), "takeovers": results}, takeover.table(results))
    if failure:
        sys.exit(failure)


def main() -> None:
    parser = cli.parser("sql", __doc__, EXAMPLES, peers=False)
    parser.add_argument("url", help="of the database")
    parser.add_argument("--activemq", action="store_true", help="measure ActiveMQ's JDBC store, too")
    parser.add_argument(
        "--takeover", metavar="N", type=int, default=0, help="instead, kill the master N times with --backlog waiting"
    )
    add_arguments(parser, ROWS)
    add_floor(parser)
    args = parser.parse_args()
    cli.terminate_on_signal()
    kinds = ["amq", SqlBroker.kind, *([JdbcBroker.kind] if args.activemq else [])]
    SqlBroker.url = JdbcBroker.url = args.url
    brokers.KINDS |= {SqlBroker.kind: SqlBroker, JdbcBroker.kind: JdbcBroker}
    rows = [ROWS[name] for name in args.row or ("1/1 window 1", "4/4 window 256")]
    scale = Effort(args.repeat, args.seconds, args.warm_up, args.backlog)
    if args.takeover:
        takeovers(args, kinds)
        return
    kinds += [FLOOR] * args.floor
    try:
        report = measure(kinds, rows, scale, args.size, args.dir, cli.amq_options(args), cli.progress)
    except (LoadError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, report, table(report["rows"], kinds), f"host: {report['host']}")


if __name__ == "__main__":
    main()
