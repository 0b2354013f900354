"""Makes docs/app.png: `python -m app.screenshot`, from the root of the repository, with what the tests need."""

from __future__ import annotations

from pathlib import Path

from tests import apphost

CODE = """\
import pandas as pd
import plotly.express as px

# Monthly mean temperatures of two places, in degrees Celsius
data = pd.DataFrame({
    "month": pd.date_range("2025-01-01", periods=12, freq="MS").strftime("%b"),
    "coast": [9.2, 9.0, 10.4, 12.1, 15.0, 17.9, 19.8, 20.1, 18.4, 15.6, 12.3, 10.1],
    "inland": [2.1, 3.4, 7.8, 11.9, 16.6, 20.7, 23.2, 22.8, 18.5, 12.7, 6.9, 3.0],
})
data.to_csv("output/temperatures.csv", index=False)
print(f"{len(data)} months, warmest inland in {data.month[data.inland.idxmax()]}")
display(px.line(data, x="month", y=["coast", "inland"], markers=True, template="simple_white", height=300))
data.describe().round(2)
"""


def main() -> None:
    with apphost.running() as host:
        host.page.set_viewport_size({"width": 860, "height": 1600})
        view = host.show(*host.call(CODE, requirements=["plotly", "pandas"]), context={"availableDisplayModes": []})
        view.frame_locator("iframe").locator(".main-svg").first.wait_for()
        view.locator("th", has_text="75%").wait_for()
        # The frame of the plot has its height, and is painted.
        host.page.wait_for_timeout(3000)
        target = Path(__file__).parents[1] / "docs" / "app.png"
        host.page.locator("iframe").screenshot(path=target)


if __name__ == "__main__":
    main()
