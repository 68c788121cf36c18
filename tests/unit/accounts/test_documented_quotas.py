"""The examples on the pages about quotas and tenants are valid."""

import yaml

from justitia_ray.config import AppArgs, AppSettings
from tests.pages import ROOT


def test_documented_quota_example_is_valid_and_matches_its_page() -> None:
    """A user who copies the example must not find a misspelt key at deployment."""
    page = (ROOT / "deployments" / "quotas.md").read_text(encoding="utf-8")
    (application,) = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])["applications"]
    names = AppArgs.parse(application["args"]).model_names
    settings = AppSettings.parse(application["deployments"][0]["user_config"]).each_model(names)
    tree = settings["large"].tenant_tree

    assert ("small", "large") == names
    assert 3600 == tree.node("acme/anybody").caps.seconds
    assert ["shadow"] == [quota.on_exhausted.value for quota in tree.node("acme/search").quotas]


def test_documented_tree_example_is_valid_and_matches_its_page() -> None:
    """The page says that a tenant that is not configured gets at most half."""
    page = (ROOT / "deployments" / "tenants.md").read_text(encoding="utf-8")
    (application,) = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])["applications"]
    AppArgs.parse(application["args"])
    settings = AppSettings.parse(application["deployments"][0]["user_config"])
    tree = settings.tenant_tree

    assert (3, 1) == (tree.node("acme/search").weight, tree.node("acme/ads").weight)
    assert 0.5 == tree.node("newcomer").kv_share.most
    assert 0.2 == settings.service_tiers["flex"].weight_factor
