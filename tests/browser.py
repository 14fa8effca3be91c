"""A headless Chromium, spoken to in WebDriver's own words (HTTP and JSON): no Python package is needed for it.

Debian: apt-get install chromium chromium-driver. Where either is missing, `available` is false and tests skip.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
available = CHROMIUM is not None and DRIVER is not None


class Browser:
    def __init__(self, folder: Path):
        assert DRIVER is not None
        # it takes a free port and tells which; nothing is written but into `folder`
        self.log = (folder / "chromedriver.log").open("w+")
        self.process = subprocess.Popen([DRIVER, "--port=0"], stdout=self.log, stderr=subprocess.STDOUT,
                                        env={**os.environ, "HOME": str(folder), "TMPDIR": str(folder)})  # fmt: skip
        self.open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        self.address = f"http://127.0.0.1:{self._port()}/session"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options = {"binary": CHROMIUM, "args": arguments}
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self._ask("", {"capabilities": {"alwaysMatch": capabilities}})
        self.address += f"/{answer['sessionId']}"

    def _port(self) -> int:
        for _ in range(600):
            self.log.seek(0)
            if found := re.search(r"started successfully on port (\d+)\.", self.log.read()):
                return int(found[1])
            time.sleep(0.1)
        raise TimeoutError("chromedriver does not start")

    def _ask(self, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        with self.open(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def go(self, page: Path) -> None:
        self._ask("/url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that the body of a function returns."""
        return self._ask("/execute/sync", {"script": script, "args": list(arguments)})

    def command(self, name: str, **parameters: Any) -> Any:
        """A command of the Chrome DevTools Protocol."""
        return self._ask("/goog/cdp/execute", {"cmd": name, "params": parameters})

    def size(self, width: int, height: int, scale: float = 1) -> None:
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                     mobile=width < 600)  # fmt: skip

    def theme(self, name: str) -> None:
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def console(self) -> list[dict[str, Any]]:
        """What was written to the console, errors of the page among it, since the last call."""
        return self._ask("/se/log", {"type": "browser"})

    def picture(self, file: Path, whole: bool = True) -> None:
        shot = self.command(
            "Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": self._all()} if whole else {})
        )
        file.write_bytes(base64.b64decode(shot["data"]))

    def _all(self) -> dict[str, float]:
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def close(self) -> None:
        try:
            self._ask("", method="DELETE")
        finally:
            self.process.terminate()
            self.process.wait(10)
            self.log.close()
