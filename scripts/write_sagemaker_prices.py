"""Write the table of SageMaker's training prices, from prices that are published and from those of EC2.

python scripts/write_sagemaker_prices.py PUBLISHED.json PUBLISHED_ON EC2.csv EC2_ON EC2_SOURCE

PUBLISHED.json has the prices of one region, `{"ml.g5.xlarge": 1.41}`, as AWS's price list has them. EC2.csv has EC2's
on-demand prices, in columns InstanceType, Region and Price. A type costs as much more in SageMaker than in EC2 in one
region as in another, so a region's price is EC2's there times the mark-up of the type where it is published. A type
that is published nowhere has the highest mark-up of the published types of its kind and size.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from stoker.providers import packaged_data
from stoker.providers.price_book import RegionPrices
from stoker.providers.sagemaker import prices
from stoker.providers.sagemaker.catalog import PREFIX

TABLE = Path(__file__).resolve().parents[1] / "src/stoker/providers/sagemaker/data/sagemaker_prices.json"
PUBLISHED_REGION = "us-east-1"
# The smallest GPU machines have a higher mark-up than the others.
_SMALLEST = "xlarge"


def main(published_file: str, published_on: str, ec2_file: str, ec2_on: str, ec2_source: str) -> None:
    published: dict[str, float] = json.loads(Path(published_file).read_text("utf-8"))
    ec2 = read_ec2(Path(ec2_file))
    markups = Markups(published, ec2[PUBLISHED_REGION])
    names = packaged_data.read_table("sagemaker", "machines")["machines"]
    published = {name: amount for name, amount in published.items() if name in names}
    tables = {}
    for region, known in sorted(ec2.items()):
        derived = {
            name: round(known[name.removeprefix(PREFIX)] * markups.of(name), 4)
            for name in names
            if name.removeprefix(PREFIX) in known
        }
        source = f"estimate: EC2's price ({ec2_source}, {ec2_on}) x SageMaker's mark-up in {PUBLISHED_REGION}"
        day, amounts = ec2_on, derived
        if region == PUBLISHED_REGION:
            source = f"AWS price list, AmazonSageMaker, read on {published_on}; types that this lacks: {source}"
            day, amounts = published_on, {**derived, **published}
        tables[region] = RegionPrices(source, date.fromisoformat(day), amounts)
    TABLE.write_text(prices.BOOK.render(tables), encoding="utf-8")
    print(f"{TABLE}: " + ", ".join(f"{region} {len(found.prices)}" for region, found in tables.items()))


def read_ec2(path: Path) -> dict[str, dict[str, float]]:
    """EC2's prices by region and type; the highest where a type is listed more than once."""
    found: dict[str, dict[str, float]] = {}
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["Price"]:
                known = found.setdefault(row["Region"], {})
                known[row["InstanceType"]] = max(float(row["Price"]), known.get(row["InstanceType"], 0.0))
    return found


class Markups:
    """How much more than in EC2 a type costs in SageMaker, as a factor."""

    def __init__(self, published: Mapping[str, float], ec2: Mapping[str, float]) -> None:
        pairs = ((name, name.removeprefix(PREFIX)) for name in published)
        self._exact = {name: published[name] / ec2[plain] for name, plain in pairs if plain in ec2}

    def of(self, name: str) -> float:
        """The factor of a type; the highest of its kind and size where its own is not published."""
        if name in self._exact:
            return self._exact[name]
        alike = [factor for other, factor in self._exact.items() if _kind(other) == _kind(name)]
        return max(alike or self._exact.values())


def _kind(name: str) -> tuple[str, bool]:
    _, family, size = name.split(".")
    kind = re.match("[a-z]+", family)
    return kind[0] if kind else family, size == _SMALLEST


if __name__ == "__main__":
    main(*sys.argv[1:])
