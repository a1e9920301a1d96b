"""The judge of crash tests: a directory is in order, at whatever moment it is looked at."""

from tests.storage import driver

from veen.core.objects.identity import HubIdentity
from veen.storage.keys import identity
from veen.verify.directory import Report, verify_data

# Of directories that `driver` writes, which have no identity files.
DRIVER_IDENTITY = HubIdentity.first(driver.HUB.public, valid_from=0)


def assert_clean(fs) -> Report:
    """No error in a directory at rest, in use or after a crash; the report, for whoever wants to know more."""
    report = verify_data(fs, identity=None if identity.exists(fs) else DRIVER_IDENTITY)
    assert report.ok, "\n".join(map(str, report.errors))
    return report
