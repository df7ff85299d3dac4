"""As much of S3 as claiming a name needs, for a thousand clients: `tiny_s3.py` prints its address.

One loop answers everybody, so that of many who create the same object exactly one succeeds. What
real servers say beyond that is left to the tests against moto.
"""

import asyncio
from urllib.parse import parse_qs, unquote, urlsplit

objects: dict[str, bytes] = {}


def answer(method: str, target: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
    url = urlsplit(target)
    path = unquote(url.path)
    if "prefix=" in url.query or "list-type" in url.query:
        prefix = parse_qs(url.query).get("prefix", [""])[0]
        bucket = "/" + path.split("/")[1]
        keys = [name.removeprefix(f"{bucket}/") for name in objects]
        found = "".join(
            f"<Contents><Key>{key}</Key><Size>1</Size><ETag>1</ETag>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in keys
            if key.startswith(prefix)
        )
        return 200, f"<ListBucketResult>{found}</ListBucketResult>".encode()
    if method == "PUT":
        if path in objects and headers.get("if-none-match") == "*":
            return 412, b"<Error><Code>PreconditionFailed</Code></Error>"
        objects[path] = body
        return 200, b""
    if path not in objects:
        return 404, b"<Error><Code>NoSuchKey</Code></Error>"
    return (206, objects[path][:1]) if "range" in headers else (200, objects[path])


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            first, *lines = head.decode().rstrip().split("\r\n")
            method, target, _ = first.split()
            pairs = (line.split(":", 1) for line in lines)
            headers = {name.lower(): value.strip() for name, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            code, content = answer(method, target, headers, body)
            reply = [f"HTTP/1.1 {code} -", f"Content-Length: {len(content)}", 'ETag: "1"']
            reply += ["Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT"]
            if code == 206:
                whole = len(objects[unquote(urlsplit(target).path)])
                reply += [f"Content-Range: bytes 0-0/{whole}"]
            writer.write("\r\n".join([*reply, "", ""]).encode())
            writer.write(b"" if method == "HEAD" else content)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
