"""The pages, a module for each subject, and THE table of them.

The menu, the application and the tests of every page are made from it.
A new page is an entry of its module's PAGES, which is named here; an action an entry of ACTIONS.
"""

from tenure.dashboard.actions import Action, action_pages
from tenure.dashboard.pages import (
    account,
    dead_letters,
    flows,
    job,
    jobs,
    overview,
    queues,
    schedules,
)
from tenure.dashboard.visits import Page

ACTIONS: tuple[Action, ...] = (
    *job.ACTIONS,
    *flows.ACTIONS,
    *queues.ACTIONS,
    *schedules.ACTIONS,
)

PAGES: tuple[Page, ...] = (
    *overview.PAGES,
    *jobs.PAGES,
    *job.PAGES,
    *dead_letters.PAGES,
    *flows.PAGES,
    *queues.PAGES,
    *schedules.PAGES,
    *account.PAGES,
    *action_pages(ACTIONS),
)
