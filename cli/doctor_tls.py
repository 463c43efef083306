"""`amq doctor --tls URL`: what will a client meet there?"""

from __future__ import annotations

import click

from amq.cli import exits
from amq.cli.clients import parse_url
from amq.cli.output import print_json, print_table


def examine_url(url: str, as_json: bool) -> None:
    """Print the report, and end with its exit code."""
    from amq.doctor.tls import examine_tls

    report = examine_tls(parse_url(url))
    if as_json:
        print_json(report.to_json())
    else:
        rows = []
        for met in report.brokers:
            for finding in met.findings:
                why = "; ".join(part for part in (finding.why, finding.cure) if part)
                rows.append((finding.level.value, met.address, finding.topic, finding.found, why))
        print_table(("", "broker", "what", "found", "what it means, or what to do"), rows)
        click.echo()
        click.echo(f"{report.url}: {report.verdict}")
    code = {"unfit": exits.FAILED, "unreachable": exits.TRANSPORT}.get(report.verdict, exits.OK)
    if code:
        raise click.exceptions.Exit(code)
