"""Chromium without a window, and pages for it."""

import shutil

import pytest

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
except ImportError:
    webdriver = None

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


class Browser:
    """A window of a size and theme; every page must leave the console without errors."""

    def __init__(self, driver):
        self.driver = driver
        self.expected_errors = ()

    def look(self, width=1280, height=1000, dark=False):
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def errors(self):
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
            # The tests read pixels, which the page itself does not.
            and not any(words in entry["message"] for words in (*self.expected_errors, "willReadFrequently"))
        ]


@pytest.fixture(scope="session")
def chromium():
    if webdriver is None or CHROMIUM is None or DRIVER is None:
        missing = [
            name
            for name, there in (("selenium", webdriver), ("chromium", CHROMIUM), ("chromedriver", DRIVER))
            if not there
        ]
        pytest.skip(f"{' and '.join(missing)} not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    window = Browser(chromium)
    window.look()
    window.driver.get_log("browser")
    yield window
    assert window.errors() == []
    chromium.get("about:blank")
