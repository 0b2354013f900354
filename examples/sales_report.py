"""A year of sales: totals by region and category, a figure, and two files for the person who asked.

Run it in the sandbox:

    prims run examples/sales_report.py --mount examples/sales.csv
"""

import matplotlib.pyplot as plt
import pandas as pd

sales = pd.read_csv("mounts/sales.csv", parse_dates=["date"])
sales["revenue"] = sales["units"] * sales["unit_price"]
print(f"{len(sales)} sales, {sales['units'].sum()} units, revenue {sales['revenue'].sum():,.2f}")

table = sales.groupby(["region", "category"])["revenue"].sum().unstack()
table["all"] = table.sum(axis="columns")
table.loc["all"] = table.sum()
print(table.round(0).astype(int).to_string())

best = sales.groupby("product")["revenue"].sum().sort_values(ascending=False)
print(f"Best product: {best.index[0]} ({best.iloc[0]:,.2f})")

monthly = sales.groupby([sales["date"].dt.to_period("M"), "region"])["revenue"].sum().unstack()
monthly.index = monthly.index.strftime("%b")
axes = monthly.plot(kind="bar", stacked=True, figsize=(8, 4.5), width=0.8)
axes.set(title="Revenue by month and region", xlabel="", ylabel="revenue")
axes.set_ylim(top=axes.get_ylim()[1] * 1.12)
axes.legend(ncols=4, loc="upper center", frameon=False)
plt.tight_layout()
plt.show()

table.round(2).to_csv("output/by_region.csv")
with pd.ExcelWriter("output/sales_report.xlsx") as book:
    table.round(2).to_excel(book, sheet_name="by region")
    monthly.round(2).to_excel(book, sheet_name="by month")
