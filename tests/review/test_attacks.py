"""Who must not get in does not, and what must not do harm does none."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from reviewing import Client, served
from unflip.review.guard import Guard
from unflip.review.review import Review, open_review

ITEM = {"index": 0, "version": 0}
BODY = {"action": "accept", "reviewer": "ann", "request": "request-x", "items": [ITEM]}


class Attacker(Client):
    """A client that also sees the review behind the server, to tell whether an attack did anything."""

    def __init__(self, address: str, review: Review) -> None:
        super().__init__(address)
        self.review = review


@pytest.fixture(scope="module")
def shared(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacker]:
    import shutil

    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("attacked") / "run"))
    with served(run) as (address, review):
        yield Attacker(address, review)
        assert review.decisions.last_id == 0  # no attack decided anything


PATHS = [
    "/",
    "/static/app.js",
    "/api/about",
    "/api/examples",
    "/api/examples/0",
    "/api/changes",
    "/api/export.csv",
    "/nothing",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", ["none", "wrong", "empty", "cookie of another port", "prefix", "not ascii"])
def test_without_the_token_nothing_is_shown(shared: Client, path: str, token: str) -> None:
    headers = {
        "none": {},
        "wrong": {"Authorization": f"Bearer {'x' * len(shared.token)}"},
        "empty": {"Authorization": "Bearer ", "Cookie": f"unflip-{shared.port}="},
        "cookie of another port": {"Cookie": f"unflip-{(shared.port or 0) + 1}={shared.token}"},
        "prefix": {"Authorization": f"Bearer {shared.token[:-1]}"},
        "not ascii": {"Authorization": "Bearer \xe9\xff"},
    }[token]
    answer = shared.send("GET", path, headers=headers)
    assert answer.status == 403
    assert "set-cookie" not in answer.headers
    assert shared.token.encode() not in answer.body


def test_the_token_in_the_address_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(shared: Client) -> None:
    answer = shared.send("GET", f"/?token={shared.token}")
    assert answer.status == 200
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"unflip-{shared.port}={shared.token}")
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")
    assert shared.send("GET", "/api/about", headers={"Cookie": cookie.partition(";")[0]}).status == 200
    beside = f'other={{"a": [1]}}; {cookie.partition(";")[0]}; x'  # another program's, on the same machine
    assert shared.send("GET", "/api/about", headers={"Cookie": beside}).status == 200
    assert shared.send("GET", "/?token=wrong", headers=shared.known).status == 403
    assert shared.send("GET", f"/api/about?token={shared.token}").status == 403  # nowhere but at the door


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[", "localhost.evil", "1.2.3.4", "a b"]
)
def test_a_foreign_host_is_turned_away_token_or_not(shared: Client, host: str) -> None:
    assert shared.send("GET", "/api/about", headers={**shared.known, "Host": host}).status == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "LOCALHOST:99", "[::1]:5"])
def test_this_machine_may_be_called_by_its_names_and_through_a_tunnel(shared: Client, host: str) -> None:
    assert shared.send("GET", "/api/about", headers={**shared.known, "Host": host}).status == 200


def test_two_hosts_or_none_are_turned_away(shared: Client) -> None:
    token = f"Authorization: Bearer {shared.token}\r\n"
    for hosts in ("", f"Host: {shared.host}\r\nHost: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", shared.port)) as raw:
            raw.sendall(f"GET /api/about HTTP/1.1\r\n{hosts}{token}Connection: close\r\n\r\n".encode())
            status = int(raw.makefile("rb").readline().split()[1])
        assert status in (400, 421)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost", "file://", "http://["]
)
def test_a_foreign_origin_is_turned_away(shared: Client, origin: str) -> None:
    headers = {**shared.known, "Origin": origin, "Content-Type": "application/json"}
    assert shared.send("POST", "/api/decide", json.dumps(BODY).encode(), headers).status == 403
    assert shared.send("GET", "/api/about", headers=headers).status == 403


def test_a_cookie_alone_decides_nothing_without_our_own_origin(shared: Client) -> None:
    headers = {"Cookie": f"unflip-{shared.port}={shared.token}", "Content-Type": "application/json"}
    assert shared.send("POST", "/api/decide", json.dumps(BODY).encode(), headers).status == 403
    own = {**headers, "Origin": f"http://{shared.host}"}
    assert shared.send("POST", "/api/decide", b"{}", own).status == 422  # let in, and found wanting


@pytest.mark.parametrize(
    "path",
    [
        "/static/../pages.py",
        "/static/..%2fpages.py",
        "/static/%2e%2e/%2e%2e/errors.py",
        "/static//etc/passwd",
        "/static/",
        "/static/app.js%00.css",
        "/../../etc/passwd",
        "/picture/../../etc/passwd",
        "/picture/KEY/small/../../../etc/passwd",
        "/picture/KEY/small/%2e%2e%2fetc%2fpasswd",
        "/picture/KEY/huge/0",
        "/picture/KEY/small/-1",
        "/picture/KEY/small/400",
        "/picture/KEY/small/1e1",
        "/picture/KEY/small/99999999999999999999999",
        "/api/examples/-1",
        "/api/examples/400",
        f"/api/examples/{'9' * 5000}",
        "/api/examples/0x1",
        "/api/examples?count=0",
        "/api/examples?count=100000",
        "/api/examples?after=-2",
        f"/api/examples?after={'9' * 4400}",
        "/api/examples?before=-5",
        "/api/examples?state=rotten",
        "/api/examples?given=x",
        "/api/examples?unknown=1",
        "/api/examples?given=%ff%fe",
        "/api/changes?since=-1",
        "/docs",
        "/openapi.json",
    ],
)
def test_no_path_leads_out_and_no_number_too_far(shared: Client, path: str) -> None:
    key = shared.get("/api/about").json["pictures"].split("/")[2]
    answer = shared.get(path.replace("KEY", key))
    assert 400 <= answer.status < 500
    assert list(answer.json) == ["error"]
    assert len(answer.body) < 6000
    for secret in (b"root:", b"Traceback", b"import ", b".py"):
        assert secret not in answer.body


BAD_BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "not UTF-8": b'{"action": "\xff"}',
    "half a character": json.dumps(BODY).replace("ann", "\\ud800").encode(),
    "NaN": json.dumps(BODY).replace("0", "NaN").encode(),
    "an unknown key": json.dumps({**BODY, "more": 1}).encode(),
    "an unknown action": json.dumps({**BODY, "action": "drop"}).encode(),
    "no items": json.dumps({**BODY, "items": []}).encode(),
    "a negative index": json.dumps({**BODY, "items": [{"index": -1, "version": 0}]}).encode(),
    "a huge index": json.dumps({**BODY, "items": [{"index": 10**30, "version": 0}]}).encode(),
    "an index behind the end": json.dumps({**BODY, "items": [{"index": 400, "version": 0}]}).encode(),
    "a version from nowhere": json.dumps({**BODY, "items": [{"index": 0, "version": 7}]}).encode(),
    "an index as text": json.dumps({**BODY, "items": [{"index": "0", "version": 0}]}).encode(),
    "an index that is true": json.dumps({**BODY, "items": [{"index": True, "version": 0}]}).encode(),
    "an example twice": json.dumps({**BODY, "items": [ITEM, ITEM]}).encode(),
    "too many": json.dumps({**BODY, "items": [{"index": i, "version": 0} for i in range(1001)]}).encode(),
    "a label with the wrong action": json.dumps({**BODY, "label": 1}).encode(),
    "no label to choose": json.dumps({**BODY, "action": "choose"}).encode(),
    "a label that is no class": json.dumps({**BODY, "action": "choose", "label": 10}).encode(),
    "a negative label": json.dumps({**BODY, "action": "choose", "label": -1}).encode(),
    "no name": json.dumps({**BODY, "reviewer": "  "}).encode(),
    "a long name": json.dumps({**BODY, "reviewer": "n" * 81}).encode(),
    "a name with a line break": json.dumps({**BODY, "reviewer": "a\nb"}).encode(),
    "a name that turns text around": json.dumps({**BODY, "reviewer": "a\u202eb"}).encode(),
    "a request with blanks": json.dumps({**BODY, "request": "a b c d e f"}).encode(),
}


@pytest.mark.parametrize("what", BAD_BODIES)
def test_a_malformed_decision_is_one_line_and_decides_nothing(shared: Attacker, what: str) -> None:
    answer = shared.post("/api/decide", BAD_BODIES[what])
    assert answer.status in (400, 404, 422)
    assert list(answer.json) == ["error"]
    assert "Traceback" not in answer.json["error"]
    assert shared.review.decisions.last_id == 0


def test_large_bodies_are_refused_announced_or_not(shared: Client) -> None:
    assert shared.post("/api/decide", b" " * 300_000).status == 413
    with socket.create_connection(("127.0.0.1", shared.port)) as raw:
        head = f"POST /api/decide HTTP/1.1\r\nHost: {shared.host}\r\nAuthorization: Bearer {shared.token}\r\n"
        raw.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        sent = 0
        try:
            while sent < 100:  # 6.4 MB, if anybody takes it
                raw.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
                sent += 1
        except OSError:
            pass
        assert sent < 100 or b" 413 " in raw.recv(100)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_not_allowed(shared: Client, method: str) -> None:
    assert shared.send(method, "/api/decide", headers=shared.known).status == 405


@pytest.mark.parametrize("path", [*PATHS, "/picture/x/small/1"])
def test_every_answer_forbids_what_pages_could_be_made_to_do(shared: Client, path: str) -> None:
    for headers in (shared.known, {}):
        answer = shared.send("GET", path, headers=headers)
        policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["img-src"] == policy["connect-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in answer.headers


def test_on_every_address_only_numbers_and_this_machines_name_are_ours() -> None:
    guard = Guard(None, token="t", host="0.0.0.0", port=80)  # type: ignore[arg-type]  # no application is ever called
    for host in ("192.168.1.7:80", "10.0.0.1", "[fe80::1]:80", "localhost", socket.gethostname()):
        assert guard._is_our_name(host), host
    for host in ("evil.example", "10.0.0.1.evil.example", ""):
        assert not guard._is_our_name(host), host


def test_the_page_names_no_other_host_and_holds_no_inline_code() -> None:
    from importlib.resources import files

    for path in (files("unflip.review") / "static").iterdir():
        text = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, path.name
        assert "https:" not in text, path.name
        for danger in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=", "onclick="):
            assert danger not in text, (path.name, danger)


def test_a_second_server_of_the_same_run_is_refused(run: Path) -> None:
    from unflip.errors import RunFolderError

    with (
        open_review(run, reviewer="ann"),
        pytest.raises(RunFolderError, match="already under review"),
        open_review(run, reviewer="bob"),
    ):
        pass
