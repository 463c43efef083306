"""Pages: the console for people. Server-side, plain forms and links; htmx fetches a part of a page again every 2 s.

Invariants: all that comes from messages, names and clients is text in the page, since the templates escape it and the
policy forbids inline code and other origins; nothing changes without a POST with the token of the session's forms.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from jinja2 import Environment, PackageLoader
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from amq.console import cluster_overview, overview, searching
from amq.console.callers import address_of, is_local
from amq.console.hosts import Hosts
from amq.console.link import OPERATION_S, Link
from amq.console.lists import LISTS, PAGES, SEARCH, SEND, Column, Listed, queue_href, topic_href
from amq.console.logins import user_of, valid_s
from amq.console.sessions import LoginSession, LoginSessions
from amq.console.whole import ClusterLink
from amq.console.words import breakable, counted, linked, shown, time_text
from amq.core.errors import AccessError, AmqError
from amq.doors.clock import Clock
from amq.management.consoles import is_loopback, web_url
from amq.management.listing import Row
from amq.management.openapi import PREFIX
from amq.security.login import ANONYMOUS
from amq.store.presence import BrokerPresence

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
STATIC: Final = "/static"
FORM_BYTES_MAX: Final = 2 << 20
ROWS: Final = 100
MESSAGES: Final = 50
FORM_FIELDS_MAX: Final = MESSAGES + 20
QUEUE_FIGURES: Final = ("messages", "in_flight", "delayed", "consumers", "enqueued", "dequeued", "bytes")
TOPIC_FIGURES: Final = ("consumers", "durable_subscriptions", "enqueued")
PREVIEW_CHARS: Final = 80
BODY_BYTES: Final = 256 << 10
PARTS: Final = (
    "cluster_live.html",
    "overview_live.html",
    "takeovers.html",
    "list_live.html",
    "figures_live.html",
    "queue_hints.html",
)
Page = Callable[[Request, LoginSession], Awaitable[Response]]


class Pages:
    """`foreign(request)` = the refusal of what another site sends, None = it is our own. `hosts` = under which names
    those without a login are answered. `peers` = URL of the consoles of other brokers, with {host} and {name} for
    theirs; "" = unknown. `url`: see `LoginSessions`."""

    def __init__(
        self,
        link: Link,
        clock: Clock,
        foreign: Callable[[Request], Response | None],
        hosts: Hosts,
        peers: str,
        url: str,
    ) -> None:
        self._link = link
        self._clock = clock
        self._peers = peers
        self._foreign = foreign
        self._hosts = hosts
        self.sessions = LoginSessions(clock, url)
        self._templates = Environment(loader=PackageLoader("amq.console"), autoescape=True)
        titles = {title: path for path, title in PAGES}
        self._templates.filters["breakable"] = breakable
        self._templates.filters["linked"] = lambda text: linked(text, titles)

    def routes(self) -> list[BaseRoute]:
        return [
            Mount(STATIC, StaticFiles(packages=[("amq.console", "static")])),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._page(self._logout), methods=["POST"]),
            Route("/", self._page(self._overview)),
            Route("/figures.json", self._page(self._figures)),
            Route("/rates.json", self._page(self._rates)),
            Route(SEARCH, self._page(self._search)),
            Route(SEND, self._page(self._send), methods=["GET", "POST"]),
            Route("/topic/{name:path}", self._page(self._topic)),
            Route("/queue/{name:path}", self._page(self._queue), methods=["GET", "POST"]),
            Route("/stores/{store}/topic/{name:path}", self._page(self._topic)),
            Route("/stores/{store}/queue/{name:path}", self._page(self._queue), methods=["GET", "POST"]),
            *(Route(each.path, self._page(self._list(each)), methods=["GET", "POST"]) for each in self._lists()),
        ]

    def _lists(self) -> Sequence[Listed]:
        if not isinstance(self._link, ClusterLink):
            return LISTS
        place = (Column("Store", "store"), Column("Node", "node"))
        return [each._replace(columns=(each.columns[0], *place, *each.columns[1:])) for each in LISTS]

    def _page(self, page: Page) -> Callable[[Request], Awaitable[Response]]:
        """Serve `page` to users who have logged in. Refuse a POST of another site or without the session's token."""

        async def answer(request: Request) -> Response:
            session = self.sessions.get(request.cookies.get(self.sessions.cookie_name, ""))
            try:
                self._hosts.check(request, None if session is None else session.user)
            except AccessError as error:
                return self._misdirected(error)
            if session is None:
                to = request.url.path if request.method == "GET" and "part" not in request.query_params else "/"
                response: Response = RedirectResponse(f"/login?{urlencode({'to': to})}", 303)
                if request.headers.get("hx-request"):
                    response = Response(status_code=204, headers={"HX-Redirect": "/login"})
                return _guarded(response)
            if request.method == "POST":
                refused = self._foreign(request)
                if refused is not None:
                    return _guarded(refused)
                try:
                    request.state.form = await _form(request)
                except AccessError as error:
                    return self._render("base.html", session, 400, title="Refused", trouble=str(error))
                if not session.is_own(request.state.form.get("csrf", "")):
                    return self._render(
                        "base.html",
                        session,
                        403,
                        title="Refused",
                        trouble="the form is not of this session: load the page again",
                    )
            try:
                return _guarded(await page(request, session))
            except AmqError as error:
                status = 403 if isinstance(error, AccessError) else 503 if error.code == "NOT_MASTER" else 400
                elsewhere = await self._elsewhere(request, _raw_path(request))
                return self._render(
                    "base.html", session, status, title="Not done", trouble=str(error), elsewhere=elsewhere
                )

        return answer

    def _render(self, template: str, session: LoginSession | None, status: int = 200, **more: Any) -> Response:
        told = ""
        if session is not None and template not in PARTS:
            told, session.told = session.told, ""
        text = self._templates.get_template(template).render(
            {
                "session": session,
                "pages": PAGES,
                "here": "",
                "told": told,
                "trouble": "",
                "title": "amq",
                "elsewhere": None,
                "wanted": "",
                **more,
            }
        )
        return _guarded(HTMLResponse(text, status))

    async def _ask(self, session: LoginSession, method: str, path: str, body: Mapping[str, Any] | None = None) -> Row:
        timeout_s = OPERATION_S if method != "GET" and not (body or {}).get("dry_run") else 10.0
        return await self._link.ask(method, path, body, session.user, timeout_s)

    async def _look(self, request: Request, session: LoginSession, path: str) -> Row:
        """The answer that a page shows. Its parts, fetched again and again, share answers with other viewers."""
        if "part" in request.query_params:
            return await self._link.shared(path, session.user)
        return await self._ask(session, "GET", path)

    async def _elsewhere(self, request: Request, path: str) -> dict[str, str] | None:
        """Name and host of the master, and where its console has this page; None = it is the broker that is asked."""
        try:
            seen = await self._link.seen()
        except AmqError:
            return None  # the page says so itself
        master = seen.status.master
        if master is None or master.owner is None or (seen.own is not None and seen.own.name == master.name):
            return None
        url = self._console_of(request, master)
        why = "it has not announced where it serves. Start `amq console` of this version on that host"
        if not url and web_url(master.console):
            why = f"it listens on that host alone, at {web_url(master.console)}"
        return {"name": master.name, "host": master.owner.host, "url": url + path if url else "", "why": why}

    def _console_of(self, request: Request, broker: BrokerPresence) -> str:
        """URL of the console of a broker, for the browser that asks; "" = unknown, or that browser cannot reach it: a
        console on a loopback address is for browsers on its own host, which ask this console in that way, too."""
        assert broker.owner is not None
        if self._peers:
            name, host = quote(broker.name, safe=""), quote(broker.owner.host)
            return self._peers.replace("{host}", host).replace("{name}", name).rstrip("/")
        url = web_url(broker.console)
        is_near = is_loopback(str(request.base_url)) and self._link.is_here(broker.owner)
        return url if url and (is_near or not is_loopback(url)) else ""

    # -- login --------------------------------------------------------------------------------------------------------

    def _misdirected(self, error: AccessError) -> Response:
        return self._render("base.html", None, 421, title="Misdirected", trouble=str(error))

    async def _login(self, request: Request) -> Response:
        try:
            self._hosts.check(request)
        except AccessError as error:
            return self._misdirected(error)
        if request.method == "GET":
            return self._render("login.html", None, title="Log in", to=request.query_params.get("to", "/"))
        refused = self._foreign(request)
        if refused is not None:
            return _guarded(refused)
        form = await _form(request)
        to = form.get("to", "/")
        body = {
            "login": form.get("login", ""),
            "passcode": form.get("passcode", ""),
            "loopback": is_local(request),
            "address": address_of(request),
        }
        try:
            found = await self._link.ask("POST", "/login", body)
        except AmqError as error:
            status = 429 if error.code == "TOO_MANY_FAILED_LOGINS" else 401 if isinstance(error, AccessError) else 503
            return self._render("login.html", None, status, title="Log in", to=to, trouble=str(error))
        response = RedirectResponse(to if to.startswith("/") and not to.startswith(("//", "/\\")) else "/", 303)
        self.sessions.close(request.cookies.get(self.sessions.cookie_name, ""))
        response.set_cookie(
            self.sessions.cookie_name,
            self.sessions.open(user_of(found), valid_s(found)),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return _guarded(response)

    async def _logout(self, request: Request, session: LoginSession) -> Response:  # noqa: ARG002
        self.sessions.close(request.cookies.get(self.sessions.cookie_name, ""))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(self.sessions.cookie_name)
        return response

    # -- what there is ------------------------------------------------------------------------------------------------

    async def _cluster(self, request: Request, session: LoginSession, link: ClusterLink) -> Response:
        """The overview of a cluster."""
        facts: dict[str, Any] = {"wrong": ""}
        try:
            seen = await link.look()
            facts["tables"], facts["alarms"] = cluster_overview.tables(seen, None, None), seen.alarms
            totals, rates = await asyncio.gather(
                *(self._look(request, session, each) for each in ("/totals", "/rates"))
            )
            facts["tables"] = cluster_overview.tables(seen, totals, rates)
            facts["figures"] = cluster_overview.figures(totals)
        except AmqError as error:
            facts["wrong"] = str(error)
        template = "cluster_live.html" if "part" in request.query_params else "cluster.html"
        return self._render(template, session, title="Overview", here="/", **facts)

    async def _overview(self, request: Request, session: LoginSession) -> Response:
        if isinstance(self._link, ClusterLink):
            return await self._cluster(request, session, self._link)
        now_ms, facts = self._clock.wall_ms(), dict[str, Any]()
        wrong, own = "", None
        try:
            seen = await self._link.seen()
            facts["takeovers"] = overview.takeovers(seen.epochs, now_ms)
            facts["drawing"] = overview.drawing(seen.epochs, now_ms)
            urls = {
                each.name: self._console_of(request, each) for each in seen.status.brokers if each.owner is not None
            }
            facts["urls"] = {name: url for name, url in urls.items() if seen.own is None or name != seen.own.name}
            facts["group"] = overview.members(seen, None, now_ms)
            facts["alarms"], facts["copies"] = overview.alarms(seen, None), overview.copies(seen)
            if request.query_params.get("part") == "takeovers":
                return self._render("takeovers.html", session, **facts)
            own = await self._look(request, session, "/broker")
            facts["group"] = overview.members(seen, own, now_ms)
            if own["role"] == "master":
                found = own | await self._look(request, session, "/totals")
                facts["figures"] = overview.figures(found)
                facts["alarms"], facts["hints"] = overview.alarms(seen, found), overview.hints(found)
        except AmqError as error:
            wrong = str(error)
        template = "overview_live.html" if "part" in request.query_params else "overview.html"
        return self._render(
            template,
            session,
            title="Overview",
            here="/",
            wrong=wrong,
            elsewhere=await self._elsewhere(request, "/"),
            serves=own is not None and own["role"] == "master",
            **facts,
        )

    async def _figures(self, request: Request, session: LoginSession) -> Response:
        """For the plot, of all, of one queue or of one topic. `seen_s` = when the broker said so."""
        status = await self._link.shared("/broker", session.user)
        if "topic" in request.query_params:
            found = await self._link.shared(f"/topics/{quote(request.query_params['topic'], safe='')}", session.user)
            facts = {field: found[field] for field in ("seen_s", "enqueued")}
            return JSONResponse({"epoch": status.get("epoch"), **facts})
        name = request.query_params.get("queue", "")
        found = await self._link.shared(f"/queues/{quote(name, safe='')}" if name else "/totals", session.user)
        gone = {field: found.get(f"forgotten_{field}", 0) for field in ("enqueued", "dequeued")}
        return JSONResponse(
            {
                "epoch": status.get("epoch"),
                "seen_s": found["seen_s"],
                "messages": found["messages"],
                **{field: found[field] + count for field, count in gone.items()},
            }
        )

    async def _rates(self, request: Request, session: LoginSession) -> Response:
        """The history of the plot."""
        wanted = {key: request.query_params[key] for key in ("queue", "topic", "span") if key in request.query_params}
        return JSONResponse(await self._link.shared(f"/rates?{urlencode(wanted)}", session.user))

    def _list(self, listed: Listed) -> Page:
        async def page(request: Request, session: LoginSession) -> Response:
            if request.method == "POST":
                return await self._end(session, request.state.form, listed)
            keys = ("name", "sort", "offset", "destination", "store")
            given = {key: request.query_params.get(key, "") for key in keys}
            given["sort"] = given["sort"] or listed.sort
            offset = int(given["offset"]) if given["offset"].isascii() and given["offset"].isdecimal() else 0
            query = {key: value for key, value in {**given, "limit": str(ROWS)}.items() if value}
            if not listed.sort:
                query.pop("limit")
            facts: dict[str, Any] = {"rows": [], "total": 0, "wrong": "", "next": "", "previous": ""}
            try:
                found = await self._look(request, session, f"{listed.resource}?{urlencode(query)}")
                total = found.get("total", len(found["items"]))
                facts |= {"rows": [_cells(listed, row) for row in found["items"]], "total": total}
                facts["wrong"] = "; ".join(
                    f"store {each['store']}: {each['detail']}" for each in found.get("missing", ())
                )
                if offset + ROWS < total:
                    facts["next"] = urlencode({**given, "offset": offset + ROWS})
                if offset:
                    facts["previous"] = urlencode({**given, "offset": max(0, offset - ROWS)})
            except AmqError as error:
                facts["wrong"] = str(error)
            template = "list_live.html" if "part" in request.query_params else "list.html"
            return self._render(
                template,
                session,
                title=listed.title,
                rows_are=listed.rows_are or listed.title,
                here=listed.path,
                name=given["name"],
                sort=given["sort"],
                store=given["store"],
                query=urlencode(given),
                columns=_columns(listed, given),
                ending=listed.ending,
                note=listed.note,
                elsewhere=await self._elsewhere(request, listed.path),
                **facts,
            )

        return page

    async def _end(self, session: LoginSession, form: Mapping[str, str], listed: Listed) -> Response:
        """Delete the object of a row, after a question."""
        ending, here = listed.ending, listed.path
        if ending is None or form.get("do") != ending.verb or any(field not in form for field in ending.fields):
            raise AccessError(f"{form.get('do', '')[:40]!r}: there is no such button", code="REQUEST_INVALID")
        what = f"{ending.noun} {form['name']}"
        if form.get("sure") != "yes":
            fields = [("do", ending.verb), *((field, form[field]) for field in ending.fields)]
            title = f"{ending.verb.capitalize()} {what}"
            about = ", ".join(f"{_title(field)} {form[field]}" for field in ending.about if form.get(field))
            return self._render(
                "confirm.html",
                session,
                title=title,
                question=f"{title}?",
                fields=fields,
                action=here,
                back=here,
                about=about,
            )
        await self._ask(session, "DELETE", ending.path(form))
        session.told = f"{ending.verb}: {what}"
        return RedirectResponse(here, 303)

    # -- search over all names ----------------------------------------------------------------------------------------

    async def _search(self, request: Request, session: LoginSession) -> Response:
        wanted = request.query_params.get("text", "").strip()
        facts: dict[str, Any] = {"groups": [], "total": 0, "wrong": ""}
        if wanted:
            brokers: list[Row] = []
            try:
                if not isinstance(self._link, ClusterLink):
                    brokers = searching.brokers((await self._link.seen()).status, wanted)
                found = await self._ask(session, "GET", f"/search?{urlencode({'text': wanted})}")
            except AmqError as error:
                facts["wrong"], found = str(error), {"items": [], "totals": {}}
            facts["groups"] = searching.groups(found, brokers)
            facts["total"] = sum(each.total for each in facts["groups"])
        where = f"{SEARCH}?{urlencode({'text': wanted})}"
        elsewhere = await self._elsewhere(request, where)
        return self._render(
            "search.html", session, title="Search", here=SEARCH, wanted=wanted, elsewhere=elsewhere, **facts
        )

    # -- a message to any queue or topic ------------------------------------------------------------------------------

    async def _send(self, request: Request, session: LoginSession) -> Response:
        form = request.state.form if request.method == "POST" else dict(request.query_params)
        kind = "topic" if form.get("kind") == "topic" else "queue"
        if request.method == "GET":
            return self._render("send.html", session, title="Send a message", here=SEND, form=form)
        name, priority = form.get("to", "").strip(), form.get("priority", "4")
        body = {
            "body": form.get("body", ""),
            "properties": _properties(form),
            "persistent": form.get("persistent") == "yes",
            "priority": int(priority) if priority in set("0123456789") else 4,
        }
        try:
            await self._ask(session, "POST", f"/{kind}s/{quote(name, safe='') or '%00'}/messages", body)
        except AmqError as error:
            return self._render(
                "send.html",
                session,
                400,
                title="Send a message",
                here=SEND,
                form=form,
                trouble=str(error) if name else "write the name of a queue or a topic",
            )
        session.told = f"1 message sent to {kind} {name}"
        return RedirectResponse(queue_href({"name": name}) if kind == "queue" else SEND, 303)

    # -- one topic ----------------------------------------------------------------------------------------------------

    async def _topic(self, request: Request, session: LoginSession) -> Response:
        above, path = _above(request)
        name = unquote(path.removeprefix("/topic/"))
        row = await self._look(request, session, f"{above}/topics/{quote(name, safe='')}")
        figures = [(field.replace("_", " "), shown(field, row[field])) for field in TOPIC_FIGURES]
        template = "figures_live.html" if "part" in request.query_params else "topic.html"
        return self._render(
            template,
            session,
            title=name,
            here="/topics",
            consumers=urlencode({"destination": f"/topic/{name}"}),
            of=above + topic_href({"name": name}),
            figures=figures,
            figures_of=name,
        )

    # -- one queue ----------------------------------------------------------------------------------------------------

    async def _queue(self, request: Request, session: LoginSession) -> Response:
        above, path = _above(request)
        encoded, _, id = path.removeprefix("/queue/").partition("/")
        name = unquote(encoded)
        resource, here = f"{above}/queues/{quote(name, safe='')}", f"{above}/queue/{quote(name, safe='')}"
        if request.method == "POST":
            return await self._change(session, request.state.form, name, resource, here)
        if id:
            return await self._message(request, session, name, resource, here, unquote(id))
        part = request.query_params.get("part", "")
        if part == "hints":
            hints = await self._hints(session, resource)
            return self._render("queue_hints.html", session, here_queue=here, hints=hints)
        row = await self._ask(session, "GET", resource)
        figures = [(field.replace("_", " "), shown(field, row[field])) for field in QUEUE_FIGURES]
        if part:
            return self._render("figures_live.html", session, of=here, figures=figures)
        selector = request.query_params.get("selector", "")
        wanted = {"selector": selector, "after": request.query_params.get("after", ""), "limit": str(MESSAGES)}
        found = await self._ask(session, "GET", f"{resource}/messages?{urlencode(wanted)}")
        rows = [
            {
                **each,
                "href": f"{here}/{quote(each['id'], safe='')}",
                "preview": _preview(each),
                "sent": time_text(each["timestamp_ms"]),
            }
            for each in found["items"]
        ]
        return self._render(
            "queue.html",
            session,
            title=name,
            here="/queues",
            here_queue=here,
            of=here,
            figures=figures,
            rows=rows,
            selector=selector,
            after=found["after"],
            paused=row["paused"],
            dead=row["dead_letter_queue"],
            hints=await self._hints(session, resource),
            figures_of=name,
            divert=row["divert"],
            consumers=urlencode({"destination": name}),
            commands=self._commands(
                request,
                session,
                f"queue browse {shlex.quote(name)}" + (f" --selector {shlex.quote(selector)}" if selector else ""),
                f"{resource}/messages?{urlencode({'selector': selector})}" if selector else f"{resource}/messages",
            ),
        )

    async def _hints(self, session: LoginSession, resource: str) -> list[dict[str, str]]:
        """Why the queue does not drain, with links."""
        found = await self._ask(session, "GET", f"{resource}/hints")
        return [
            {**hint, "href": quote(hint["id"], safe=""), "to": queue_href({"name": hint["queue"]})}
            for hint in found["items"]
        ]

    def _commands(self, request: Request, session: LoginSession, words: str, resource: str) -> list[str]:
        """The same question in a shell, to `amq` on a broker's host and to this console."""
        login = "" if session.user.name == ANONYMOUS else f"-u {shlex.quote(session.user.name)} "
        url = f"{str(request.base_url).rstrip('/')}{PREFIX}{resource}"
        which = "--cluster" if isinstance(self._link, ClusterLink) else "--store"
        return [f"amq {words} {which} {shlex.quote(self._link.store)}", f"curl {login}{shlex.quote(url)}"]

    async def _message(
        self, request: Request, session: LoginSession, name: str, resource: str, here: str, id: str
    ) -> Response:
        row = await self._ask(session, "GET", f"{resource}/messages/{quote(id, safe='')}?body={BODY_BYTES}")
        more = {**row.pop("headers", {}), **row.pop("properties")}
        body = row.pop("body", None)
        encoded = row.pop("body_base64", "")
        text = _pretty(body, row["content_type"]) if body is not None else _hex(encoded)
        headers = [(_title(key), shown(key, value)) for key, value in row.items() if value not in ("", None, 0)]
        headers += [(key, shown("", value)) for key, value in more.items() if value not in ("", None)]
        return self._render(
            "message.html",
            session,
            title=f"Message {id}",
            here="/queues",
            headers=headers,
            body=text,
            back=here,
            id=id,
            truncated=row["truncated"],
            bytes=row["bytes"],
            dead="dead-letter-reason" in more,
            name=name,
            commands=self._commands(
                request, session, f"message show {shlex.quote(id)}", f"{resource}/messages/{quote(id, safe='')}"
            ),
        )

    async def _change(
        self, session: LoginSession, form: Mapping[str, str], name: str, resource: str, here: str
    ) -> Response:
        do, ids = form.get("do", ""), form["ids"].split(",") if form.get("ids") else []
        body: dict[str, Any] = {"selector": form.get("selector", ""), "ids": ids}
        if do in ("pause", "resume"):
            await self._ask(session, "POST", f"{resource}/{do}")
            session.told = f"{name} is paused" if do == "pause" else f"{name} delivers"
        elif do == "send":
            await self._ask(
                session, "POST", f"{resource}/messages", {"body": form.get("body", ""), "properties": _properties(form)}
            )
            session.told = "1 message sent"
        elif do in ("purge", "move", "copy", "retry", "delete"):
            if do in ("move", "copy"):
                body["to"] = form.get("to", "")
            if form.get("sure") != "yes":
                return await self._confirm(session, do, form, name, resource, here, body)
            method, path = ("DELETE", resource) if do == "delete" else ("POST", f"{resource}/{do}")
            found = await self._ask(session, method, path, None if do == "delete" else body)
            session.told = f"{do}: {counted(found['count'], 'message')}"
            here = "/queues" if do == "delete" else here
        else:
            raise AccessError(f"{do[:40]!r}: there is no such button", code="REQUEST_INVALID")
        return RedirectResponse(here, 303)

    async def _confirm(
        self,
        session: LoginSession,
        do: str,
        form: Mapping[str, str],
        name: str,
        resource: str,
        here: str,
        body: Mapping[str, Any],
    ) -> Response:
        """A page that says how many messages are meant."""
        path = f"{resource}/{'purge' if do == 'delete' else do}"
        found = await self._ask(session, "POST", path, {**body, "dry_run": True})
        count = f"{'' if found['complete'] else 'at least '}{counted(found['count'], 'message')}"
        to = f" to {form.get('to', '')}" if do in ("move", "copy") else ""
        fields = [(key, form[key]) for key in ("do", "selector", "ids", "to") if key in form]
        return self._render(
            "confirm.html",
            session,
            title=f"{do.capitalize()} {name}",
            question=f"{do.capitalize()} {count}{to}?",
            fields=fields,
            action=here,
            back=here,
        )


def _raw_path(request: Request) -> str:
    """As it came, percent-encoded."""
    path: bytes = request.scope["raw_path"]
    return path.decode("latin-1").partition("?")[0]


def _above(request: Request) -> tuple[str, str]:
    """The part before the path where that is about one store of a cluster, as in the REST interface; and the path."""
    path = _raw_path(request)
    if not path.startswith("/stores/"):
        return "", path
    store = path.split("/")[2]
    return f"/stores/{store}", path.removeprefix(f"/stores/{store}")


def _guarded(response: Response) -> Response:
    """`response` with the headers of all pages."""
    response.headers.update(
        {
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
    )
    return response


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form; `ids` are joined by commas. Raises AccessError if it is too large or not a form."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > FORM_BYTES_MAX:
            raise AccessError(f"a form of more than {FORM_BYTES_MAX} bytes", code="REQUEST_INVALID")
    try:
        fields = parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX)
        checked = ",".join(value for name, value in fields if name == "ids")
        return dict(fields) | ({"ids": checked} if checked else {})
    except ValueError as error:
        raise AccessError("the form cannot be read", code="REQUEST_INVALID") from error


def _properties(form: Mapping[str, str]) -> dict[str, str]:
    lines = [line.partition("=") for line in form.get("properties", "").splitlines() if line]
    return {key.strip(): value for key, _, value in lines}


def _columns(listed: Listed, given: Mapping[str, str]) -> list[dict[str, Any]]:
    """Heads of columns; those of numbers, and the name, sort."""
    columns = []
    for each in listed.columns:
        sorts = bool(listed.sort) and (each.number or each.field == "name") and not each.derived
        field = given["sort"].removeprefix("-")
        down = given["sort"].startswith("-")
        now = ("descending" if down else "ascending") if sorts and field == each.field else ""
        then = each.field if now == "descending" or (not now and not each.number) else f"-{each.field}"
        link = urlencode({**given, "sort": then, "offset": ""}) if sorts else ""
        columns.append({"title": each.title, "field": each.field, "number": each.number, "sorted": now, "link": link})
    return columns


def _cells(listed: Listed, row: Row) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = []
    for each in listed.columns:
        value = row.get(each.field)
        text = shown(each.field, value)
        href = each.href(row) if each.href is not None else ""
        if href.startswith(("/queue/", "/topic/")) and "store" in row:
            href = f"/stores/{quote(row['store'], safe='')}{href}"
        cells.append(
            {
                "text": text,
                "number": each.number,
                "label": each.title,
                "href": href,
                "id": f"to-{href}" if href else "",
            }
        )
    if listed.ending is not None:
        ending = listed.ending
        fields = [(field, row[field] or "") for field in (*ending.fields, *ending.about)]
        cells.append({"fields": fields, "name": row["name"], "id": f"end-{ending.path(dict(fields))}"})
    return cells


def _title(field: str) -> str:
    return {"timestamp_ms": "sent", "expires_ms": "expires"}.get(field, field.replace("_", " "))


def _preview(row: Row) -> str:
    if "body" not in row:
        return f"({row['bytes']} bytes, not text)"
    text = " ".join(row["body"].split())
    return text if len(text) <= PREVIEW_CHARS else text[:PREVIEW_CHARS] + "…"


def _pretty(body: str, kind: str) -> str:
    if "json" in kind or body[:1] in ("{", "["):
        try:
            return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return body
    return body


def _hex(encoded: str) -> str:
    """Bytes as lines of 16, with their characters beside."""
    data = base64.b64decode(encoded)
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):47}  {letters}")
    return "\n".join(lines)
