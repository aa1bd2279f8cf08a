"""Runs os-ken applications until they end: osken.py [OPTION...] MODULE_OR_FILE..."""

import sys

from os_ken import cfg, log

log.early_init_log()

from os_ken import flags  # noqa: F401, registers the options of the test suite
from os_ken.base.app_manager import AppManager

cfg.CONF.register_cli_opts([cfg.MultiStrOpt("applications", positional=True)])
cfg.CONF(args=sys.argv[1:], project="os_ken")
log.init_log()
if "os_ken.tests.switch.tester" in cfg.CONF.applications:
    import tester

    tester.prepare()
AppManager.run_apps(cfg.CONF.applications + ["os_ken.controller.ofp_handler"])
