"""Sends one HTTP request from inside the machine. Reads what to ask from stdin as JSON, prints JSON."""

from __future__ import annotations

import base64
import json
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request

BODY_BYTES = 262144


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_given):  # type: ignore[explicit-override, no-untyped-def]
        return None


def _opener(asked: dict) -> urllib.request.OpenerDirector:  # type: ignore[type-arg]
    context = ssl.create_default_context(cafile=asked.get("ca-file") or None)
    if asked.get("allow-insecure"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    host = (urllib.parse.urlsplit(asked["url"]).hostname or "").lower()
    if asked.get("proxy"):
        handlers.append(
            urllib.request.ProxyHandler({"http": asked["proxy"], "https": asked["proxy"]})
        )
    elif host in ("localhost", "::1") or host.startswith("127."):
        handlers.append(urllib.request.ProxyHandler({}))  # never ask a proxy for ourselves
    if asked.get("no-follow-redirects"):
        handlers.append(_NoRedirect())
    return urllib.request.build_opener(*handlers)


def _request(asked: dict) -> urllib.request.Request:  # type: ignore[type-arg]
    body = asked.get("request-body")
    request = urllib.request.Request(
        asked["url"],
        data=body.encode("utf-8") if body is not None else None,
        method=asked.get("method") or ("POST" if body is not None else "GET"),
    )
    request.add_header("User-Agent", "torpor-check")
    for line in asked.get("request-headers") or ():
        name, _, value = line.partition(":")
        request.add_header(name, value.strip())
    if asked.get("username") is not None or asked.get("password") is not None:
        pair = "%s:%s" % (asked.get("username") or "", asked.get("password") or "")
        token = base64.b64encode(pair.encode("utf-8")).decode("ascii")
        request.add_header("Authorization", "Basic " + token)
    return request


def main() -> None:
    """Ask, and print `{status, headers, body, is_cut}` or `{error}`."""
    asked = json.loads(sys.stdin.buffer.read())
    try:
        try:
            reply = _opener(asked).open(_request(asked), timeout=asked["timeout"])
        except urllib.error.HTTPError as exc:
            reply = exc  # an answer too: its status is what is compared
        with reply:
            body = reply.read(BODY_BYTES + 1)
            headers = ["%s: %s" % pair for pair in reply.headers.items()]
            status = reply.status
    except Exception as exc:  # noqa: BLE001 - whatever it is, the check fails with its words
        reason = getattr(exc, "reason", None) or exc
        print(json.dumps({"error": "%s: %s" % (type(reason).__name__, reason)}))
        return
    found = {
        "status": status,
        "headers": headers[:200],
        "body": base64.b64encode(body[:BODY_BYTES]).decode("ascii"),
        "is_cut": len(body) > BODY_BYTES,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
