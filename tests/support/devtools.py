"""A page in headless Chromium, driven over its DevTools protocol: for pages that act, where a screenshot of a loaded
page is not enough. Needs tornado, which Jupyter brings; no driver is installed."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.browser import browser

_START = 60.0  # seconds


class Tab:
    """One page. Calls block."""

    def __init__(self, socket: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._socket, self._loop, self._numbers = socket, loop, itertools.count(1)

    def call(self, method: str, seconds: float = 60.0, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        return self._loop.run_until_complete(asyncio.wait_for(self._call(method, parameters), seconds))

    def value(self, script: str, seconds: float = 60.0) -> Any:
        """The value of an expression, awaited where it is a promise."""
        said = self.call(
            "Runtime.evaluate", seconds, expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def until(self, script: str, seconds: float = 60.0) -> Any:
        """The first true value of an expression, asked again and again."""
        deadline = time.monotonic() + seconds
        while not (found := self.value(script)):
            assert time.monotonic() < deadline, script
            time.sleep(0.2)
        return found

    def picture(self, left: float, top: float, width: float, height: float) -> Any:
        """A part of what is visible, as an image of Pillow."""
        from PIL import Image

        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", clip=clip)["data"]
        return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.write_message(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            text = await self._socket.read_message()
            assert text is not None, "the browser has gone"
            said = json.loads(text)
            if said.get("id") == number:
                assert "error" not in said, said["error"]
                result: dict[str, Any] = said["result"]
                return result


@contextmanager
def opened(url: str, folder: Path, dark: bool = False, size: tuple[int, int] = (1400, 1400)) -> Iterator[Tab]:
    """A tab with a page, in a browser of its own that ends with the block."""
    from tornado.websocket import websocket_connect

    profile = folder / "profile"
    words = [
        browser(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0",
        "--remote-allow-origins=*", f"--user-data-dir={profile}", f"--window-size={size[0]},{size[1]}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "about:blank",
    ]  # fmt: skip
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        loop = asyncio.new_event_loop()
        try:
            port = _port(profile / "DevToolsActivePort")
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/json/new?about:blank", method="PUT")
            with urllib.request.urlopen(asked, timeout=_START) as answer:
                address = json.load(answer)["webSocketDebuggerUrl"]

            async def connect() -> Any:
                return await websocket_connect(address, max_message_size=256 << 20)

            socket = loop.run_until_complete(connect())
            tab = Tab(socket, loop)
            tab.call("Page.enable")
            tab.call("Emulation.setFocusEmulationEnabled", enabled=True)  # a background tab is not painted
            tab.call("Page.navigate", url=url)
            yield tab
            socket.close()
        finally:
            loop.close()
            running.terminate()


def _port(file: Path) -> int:
    """The port that the browser chose, once it has written it down."""
    deadline = time.monotonic() + _START
    while not (file.exists() and file.read_text().strip()):
        assert time.monotonic() < deadline, "the browser has not started"
        time.sleep(0.1)
    return int(file.read_text().split()[0])


def is_blank(image: Any) -> bool:
    """Whether an image shows next to nothing: one colour, but for a few pixels."""
    colors = image.getcolors(1 << 24)
    total = image.width * image.height
    return max(count for count, _ in colors) > 0.995 * total or len(colors) < 8
