"""The audit of sites: what a site's updates tell of the site, and from which site an unnamed update is."""

from leakscope.audits.sites.audit import SiteAudit

__all__ = ["SiteAudit"]
