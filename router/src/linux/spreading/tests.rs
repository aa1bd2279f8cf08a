//! Tests with the indirection tables of a fake NIC.

use super::*;
use crate::linux::classifier::{Ntuple, fake::Nic};

struct Case {
    nic: Nic,
    directory: tempfile::TempDir,
    spreading: Spreading,
}

fn open(nic: &Nic, directory: &tempfile::TempDir, takes_over: bool) -> Spreading {
    let file = directory.path().join("x.spreading");
    Spreading::open(Box::new(Ntuple(nic.clone())), file, |_| takes_over)
}

fn over(used: u16, all: u16) -> Option<Spreads> {
    Some(Spreads::Over(Spread { all, used }))
}

/// A table with this many queues in turn.
fn even(queues: u32) -> Vec<u32> {
    (0..128).map(|at| at % queues).collect()
}

impl Case {
    /// A NIC with 16 queues.
    fn new() -> Case {
        let (nic, directory) = (Nic::new(16, 64, false), tempfile::tempdir().unwrap());
        let spreading = open(&nic, &directory, true);
        Case { nic, directory, spreading }
    }

    /// The daemon is killed, and another one starts.
    fn next(self, takes_over: bool) -> Case {
        let Case { nic, directory, spreading } = self;
        drop(spreading);
        Case { spreading: open(&nic, &directory, takes_over), nic, directory }
    }

    fn table(&self) -> Vec<u32> {
        Ntuple(&self.nic).indirection("eth1").unwrap()
    }

    /// Somebody else sets this table.
    fn others_set(&self, table: &[u32]) {
        Ntuple(&self.nic).set_indirection("eth1", table).unwrap();
    }

    fn look(&self) -> Option<Spreads> {
        self.spreading.look(1).unwrap()
    }

    /// As `millrace stop` without a daemon.
    fn clean(&self) -> Vec<String> {
        clean(Box::new(Ntuple(self.nic.clone())), &self.directory.path().join("x.spreading"))
    }

    fn files(&self) -> usize {
        fs::read_dir(self.directory.path()).unwrap().count()
    }
}

#[test]
fn fewer_queues_are_in_use_and_all_again() {
    let case = Case::new();
    assert_eq!(case.look(), over(16, 16));
    assert_eq!((case.nic.tables().len(), case.files()), (0, 0), "looking changes nothing");
    case.spreading.use_first(1, 4).unwrap();
    assert_eq!((case.table(), case.look()), (even(4), over(4, 16)));
    case.spreading.use_first(1, 8).unwrap();
    assert_eq!((case.table(), case.files()), (even(8), 1));
    case.spreading.use_first(1, 8).unwrap();
    assert_eq!(case.nic.tables().len(), 2, "an equal table is not set again");
    assert_eq!(case.spreading.use_all(), Vec::<String>::new());
    assert_eq!((case.table(), case.files()), (even(16), 0));
    // The kernel forgets that somebody has set a table.
    assert_eq!(case.nic.tables(), [even(4), even(8), Vec::new()]);
}

#[test]
fn reserved_queues_are_left_out_with_any_number_in_use() {
    let case = Case::new();
    case.look();
    case.spreading.use_first(1, 8).unwrap();
    case.spreading.reserve(1, &[12, 13, 14, 15]).unwrap();
    assert_eq!(case.look(), over(12, 12), "8 of 12 are not possible, so more are in use");
    case.spreading.use_first(1, 6).unwrap();
    let queues = |case: &Case| BTreeSet::from_iter(case.table()).len();
    assert_eq!((queues(&case), case.look()), (6, over(6, 12)));
    case.spreading.use_first(1, 12).unwrap();
    assert_eq!(case.table(), without(&even(16), &[12, 13, 14, 15]).unwrap());
    case.spreading.use_first(1, 6).unwrap();
    // Reserving ends before placing, and then the other way round.
    case.spreading.release(1).unwrap();
    assert_eq!((case.table(), case.look()), (even(8), over(8, 16)));
    assert_eq!(case.spreading.use_all(), Vec::<String>::new());
    assert_eq!((case.table(), case.files()), (even(16), 0));
    case.spreading.reserve(1, &[15]).unwrap();
    assert_eq!(case.spreading.use_all(), Vec::<String>::new());
    assert!(!case.table().contains(&15));
    case.spreading.release(1).unwrap();
    assert_eq!((case.table(), case.files()), (even(16), 0));
}

#[test]
fn the_next_daemon_goes_on_or_restores_the_original() {
    let changed = || {
        let case = Case::new();
        case.look();
        case.spreading.use_first(1, 4).unwrap();
        case
    };
    let case = changed().next(true);
    assert_eq!((case.table(), case.look()), (even(4), over(4, 16)), "as it was left");
    case.spreading.use_all();
    assert_eq!((case.table(), case.files()), (even(16), 0));
    let case = changed().next(false);
    assert_eq!((case.table(), case.files()), (even(16), 0));
    // Reservations of the earlier daemon last until steering reserves again or ends them.
    let case = changed();
    case.spreading.reserve(1, &[12, 13, 14, 15]).unwrap();
    let case = case.next(true);
    let written = case.nic.tables().len();
    assert_eq!(case.look(), over(6, 12));
    case.spreading.reserve(1, &[12, 13, 14, 15]).unwrap();
    assert_eq!(
        (case.look(), case.nic.tables().len()),
        (over(6, 12), written),
        "it goes on with the same table"
    );
    case.spreading.release_all();
    assert_eq!((case.look(), case.table()), (over(4, 16), even(4)), "nobody steers any more");
    let case = changed();
    case.spreading.reserve(1, &[12, 13, 14, 15]).unwrap();
    let case = case.next(true);
    case.spreading.release_all();
    assert_eq!((case.look(), case.table()), (over(4, 16), even(4)), "also before the first look");
    // No daemon starts.
    let case = changed();
    let done = case.clean();
    assert_eq!(done, ["port eth1: packets are spread over all queues again"]);
    assert_eq!((case.table(), case.files()), (even(16), 0));
    assert!(case.clean().is_empty());
}

#[test]
fn our_table_is_recognised_after_a_kill_during_a_change() {
    for is_done in [false, true] {
        let case = Case::new();
        case.look();
        case.spreading.use_first(1, 8).unwrap();
        // As if the daemon was killed while the driver worked.
        case.nic.refuse_tables(Some(libc::EIO));
        assert!(case.spreading.use_first(1, 4).is_err());
        case.nic.refuse_tables(None);
        if is_done {
            case.others_set(&even(4));
        }
        let case = case.next(true);
        assert_eq!(case.look(), over(8, 16), "the earlier wish");
        case.spreading.use_all();
        assert_eq!((case.table(), case.files()), (even(16), 0));
    }
}

#[test]
fn a_table_that_a_driver_refuses_but_sets_later_is_ours() {
    let case = Case::new();
    case.look();
    case.nic.refuse_and_do_it(libc::EIO);
    assert!(case.spreading.use_first(1, 4).is_err());
    assert_eq!(case.table(), even(4));
    case.nic.refuse_tables(None);
    let case = case.next(false);
    assert_eq!((case.table(), case.files()), (even(16), 0));
}

#[test]
fn a_table_of_zeros_from_a_device_that_is_down_is_ignored() {
    // Down from the beginning.
    let case = Case::new();
    case.nic.set_down(true);
    assert_eq!(case.look(), None);
    case.nic.set_down(false);
    assert_eq!(case.look(), over(16, 16));
    // Down for a while.
    case.spreading.use_first(1, 4).unwrap();
    case.nic.set_down(true);
    assert!(case.spreading.look(1).is_err());
    assert!(case.spreading.use_first(1, 8).is_err());
    case.nic.set_down(false);
    assert_eq!((case.look(), case.nic.tables().len()), (over(4, 16), 1), "nothing was written");
    // After a kill.
    case.nic.set_down(true);
    let done = case.clean();
    assert!(done[0].contains("may be spread over the first queues only"), "{done:?}");
    let case = case.next(true);
    assert!(case.spreading.look(1).is_err());
    case.nic.set_down(false);
    assert_eq!(case.look(), over(4, 16));
    case.spreading.use_all();
    assert_eq!((case.table(), case.files()), (even(16), 0));
}

#[test]
fn a_table_is_restored_for_the_present_number_of_queues() {
    let case = Case::new();
    case.nic.set_queues(32);
    case.look();
    case.spreading.use_first(1, 4).unwrap();
    // After a kill, fewer queues are there.
    case.nic.set_queues(16);
    let done = case.clean();
    assert_eq!(done, ["port eth1: packets are spread over all queues again"]);
    assert_eq!((case.table(), case.files()), (even(16), 0));
    // The next daemon goes on with fewer queues.
    let case = Case::new();
    case.nic.set_queues(32);
    case.look();
    case.spreading.use_first(1, 4).unwrap();
    case.nic.set_queues(16);
    let case = case.next(true);
    assert_eq!(case.look(), over(4, 16));
    case.spreading.use_first(1, 16).unwrap();
    assert_eq!((case.table(), case.files()), (even(16), 0));
}

#[test]
fn a_table_that_somebody_has_set_is_left_alone() {
    let case = Case::new();
    for made in [vec![5; 128], (0..128).map(|at| u32::from(at % 3 == 0)).collect()] {
        case.others_set(&made);
        let spreading = open(&case.nic, &case.directory, true);
        let found = spreading.look(1).unwrap();
        assert!(matches!(found, Some(Spreads::LeftAlone(_, MADE))), "{found:?}");
        assert_eq!(spreading.use_all(), Vec::<String>::new());
        assert_eq!(case.table(), made);
    }
    // An even table over fewer queues than the device has (ethtool -X eth1 equal 8): no others are used.
    case.others_set(&even(8));
    assert_eq!(case.look(), over(8, 8));
    case.spreading.use_first(1, 4).unwrap();
    assert_eq!(case.look(), over(4, 8));
    case.spreading.use_all();
    assert_eq!(case.table(), even(8));
}

#[test]
fn a_table_that_somebody_else_changes_is_left_alone_from_then_on() {
    let case = Case::new();
    case.look();
    case.spreading.use_first(1, 4).unwrap();
    case.others_set(&even(7));
    let error = case.spreading.use_first(1, 8).unwrap_err();
    assert_eq!(format!("{error:#}"), CHANGED);
    case.nic.set_queues(32);
    for _ in 0..2 {
        assert_eq!(case.look(), Some(Spreads::LeftAlone(7, CHANGED)), "with any number of queues");
    }
    assert_eq!(case.look(), Some(Spreads::LeftAlone(7, CHANGED)));
    assert!(case.spreading.reserve(1, &[15]).is_err());
    assert_eq!(case.spreading.use_all(), Vec::<String>::new());
    assert_eq!(case.table(), even(7), "nor is the original restored");
    assert_eq!(case.clean(), Vec::<String>::new());
    assert_eq!((case.table(), case.files()), (even(7), 0));
    // Nor does the next daemon restore it.
    let case = Case::new();
    case.look();
    case.spreading.use_first(1, 4).unwrap();
    case.others_set(&even(7));
    let case = case.next(false);
    assert_eq!((case.table(), case.files()), (even(7), 0));
}

#[test]
fn reservations_survive_some_resets_of_a_driver_but_not_endlessly() {
    let case = Case::new();
    case.look();
    case.spreading.reserve(1, &[15]).unwrap();
    for _ in 0..MOST_RESETS {
        case.spreading.use_first(1, 8).unwrap();
        case.nic.forget_all();
        assert_eq!(case.look(), over(15, 15), "placing decides again");
        assert!(!case.table().contains(&15), "reserved queues stay reserved");
    }
    case.nic.forget_all();
    assert_eq!(case.look(), Some(Spreads::LeftAlone(16, RESET)));
    assert_eq!((case.table(), case.files()), (even(16), 1), "the driver may still set our table");
    assert_eq!((case.clean(), case.files()), (vec![], 0));
    // After an hour, earlier resets do not count.
    let case = Case::new();
    case.look();
    for _ in 0..2 * MOST_RESETS {
        case.spreading.use_first(1, 8).unwrap();
        case.nic.forget_all();
        (0..=FORGIVEN).for_each(|_| assert_eq!(case.look(), over(16, 16)));
    }
}

#[test]
fn a_refused_change_leaves_everything_as_before() {
    let case = Case::new();
    case.look();
    case.spreading.use_first(1, 8).unwrap();
    case.nic.refuse_tables(Some(libc::EBUSY));
    assert!(case.spreading.use_first(1, 4).is_err());
    assert!(case.spreading.reserve(1, &[15]).is_err());
    assert_eq!((case.table(), case.look()), (even(8), over(8, 16)));
    let conditions = case.spreading.use_all();
    assert!(
        conditions[0].starts_with("eth1 may spread packets over the first queues only: "),
        "{conditions:?}"
    );
    let case = case.next(false);
    assert_eq!((case.table(), case.files()), (even(8), 1), "it stays in the file");
    case.nic.refuse_tables(None);
    let case = case.next(false);
    assert_eq!((case.table(), case.files()), (even(16), 0));
}

#[test]
fn a_change_that_cannot_be_written_to_the_file_is_not_made() {
    let (nic, directory) = (Nic::new(16, 64, false), tempfile::tempdir().unwrap());
    let file = directory.path().join("nowhere/x.spreading");
    let spreading = Spreading::open(Box::new(Ntuple(nic.clone())), file, |_| true);
    assert_eq!(spreading.look(1).unwrap(), over(16, 16));
    assert!(spreading.use_first(1, 4).is_err());
    assert_eq!((nic.tables().len(), spreading.look(1).unwrap()), (0, over(16, 16)));
}

#[test]
fn a_device_that_was_replaced_is_a_new_one() {
    let case = Case::new();
    case.look();
    case.spreading.use_first(1, 4).unwrap();
    case.nic.forget_all();
    case.nic.rename(1, None);
    case.nic.rename(4, Some("eth1"));
    assert_eq!(case.spreading.look(1).unwrap(), None);
    assert_eq!(case.spreading.look(4).unwrap(), over(16, 16), "nobody else is assumed to have changed it");
    assert_eq!(case.files(), 0, "the earlier device has nothing to restore");
    case.spreading.use_first(4, 8).unwrap();
    assert_eq!(case.table(), even(8));
    let before = fs::read(case.directory.path().join("x.spreading")).unwrap();
    case.nic.rename(4, None);
    assert_eq!((case.spreading.look(4).unwrap(), case.spreading.use_all()), (None, vec![]));
    // The device vanished while no daemon ran.
    fs::write(case.directory.path().join("x.spreading"), before).unwrap();
    let done = case.clean();
    assert!(done[0].starts_with("port eth1 is gone; if it went into another network namespace"), "{done:?}");
    assert_eq!(case.files(), 0);
}

#[test]
fn a_renamed_device_is_the_same() {
    for killed in [false, true] {
        let case = Case::new();
        case.look();
        case.spreading.use_first(1, 4).unwrap();
        case.nic.rename(1, Some("wan"));
        if killed {
            let done = case.clean();
            assert_eq!(done, ["port wan: packets are spread over all queues again"]);
        } else {
            assert_eq!(case.spreading.use_all(), Vec::<String>::new());
        }
        assert_eq!((case.table(), case.files()), (even(16), 0));
    }
}

#[test]
fn a_table_that_is_not_reported_for_a_while_is_not_forgotten() {
    let case = Case::new();
    case.look();
    case.spreading.use_first(1, 4).unwrap();
    case.nic.fail(Some(libc::EINVAL));
    assert!(case.spreading.look(1).is_err());
    assert!(case.spreading.use_first(1, 8).is_err());
    let case = case.next(false);
    assert_eq!(case.files(), 1);
    case.nic.fail(None);
    assert_eq!(case.table(), even(4));
    let case = case.next(false);
    assert_eq!((case.table(), case.files()), (even(16), 0));
}

#[test]
fn queues_that_are_added_can_be_used() {
    let case = Case::new();
    case.look();
    case.spreading.reserve(1, &[15]).unwrap();
    case.spreading.use_first(1, 8).unwrap();
    case.nic.set_queues(32);
    assert_eq!(case.look(), Some(Spreads::LeftAlone(31, BETWEEN)));
    case.spreading.release(1).unwrap();
    assert_eq!((case.table(), case.look()), (even(8), over(8, 32)));
    case.spreading.use_first(1, 32).unwrap();
    assert_eq!((case.table(), case.files()), (even(32), 0));
}

#[test]
fn a_table_that_somebody_set_stays_the_original_with_another_number_of_queues() {
    let made = || {
        let case = Case::new();
        case.others_set(&even(8));
        case.look();
        case.spreading.use_first(1, 4).unwrap();
        case
    };
    let case = made();
    case.nic.set_queues(32);
    assert_eq!((case.look(), case.table()), (over(4, 8), even(4)), "still fewer than the device has");
    case.spreading.use_all();
    assert_eq!((case.table(), case.files()), (even(8), 0));
    // With the original table in the device, the kernel would have refused this change.
    let case = made();
    case.nic.set_queues(6);
    assert_eq!((case.look(), case.table(), case.files()), (over(6, 6), even(6), 0));
}

#[test]
fn reserved_queues_stay_reserved_when_a_driver_refuses_after_queues_were_added() {
    let case = Case::new();
    case.look();
    case.spreading.reserve(1, &[15]).unwrap();
    case.nic.set_queues(32);
    case.nic.refuse_tables(Some(libc::EBUSY));
    assert_eq!(case.look(), Some(Spreads::LeftAlone(15, BETWEEN)));
    case.nic.refuse_tables(None);
    assert_eq!(case.look(), Some(Spreads::LeftAlone(31, BETWEEN)));
    assert!(!case.table().contains(&15));
    case.spreading.release(1).unwrap();
    assert_eq!((case.table(), case.files()), (even(32), 0));
}

#[test]
fn a_table_that_somebody_sets_before_our_first_change_is_the_original() {
    let case = Case::new();
    case.look();
    case.others_set(&even(8));
    assert_eq!(case.look(), over(8, 8));
    case.spreading.use_first(1, 4).unwrap();
    case.spreading.use_all();
    assert_eq!((case.table(), case.files()), (even(8), 0));
}

#[test]
fn a_device_without_a_table_is_not_changed() {
    let case = Case::new();
    assert_eq!(case.spreading.look(2).unwrap(), None);
    case.spreading.reserve(2, &[1]).unwrap();
    case.spreading.use_first(2, 1).unwrap();
    case.spreading.release(2).unwrap();
    assert_eq!((case.nic.tables().len(), case.files()), (0, 0));
}

#[test]
fn entries_of_reserved_queues_go_to_the_others_in_turn() {
    assert_eq!(without(&[0, 1, 2, 3, 0, 1, 2, 3], &[3]).unwrap(), [0, 1, 2, 0, 0, 1, 2, 1]);
    assert_eq!(without(&[3, 3], &[3]), None, "nothing would be left");
    assert_eq!(without(&[], &[3]), Some(vec![]));
}
