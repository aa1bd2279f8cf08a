//! The cpuset of applications: a control group that gets the cores that do not forward (Q1).
//!
//! The file has the same name in both versions of control groups (`Documentation/admin-guide/cgroup-v1/cpusets.rst`,
//! cgroup-v2.rst). The file with the effective cores, which an empty list stands for, has different names. Writing the
//! list makes the kernel move threads and wait for others, so the thread that may take long does it. The owner of the
//! group may change it or create it again (systemd does both), so it is read each second.

use super::{
    CoreId, Roots, cores,
    knob::{Knob, Value, What},
    knobs::Knobs,
};
use logic::cpus;
use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// The control group and its cores.
#[derive(Debug)]
pub struct Serve {
    directory: PathBuf,
    /// Tells the directory from a later one of the same name.
    inode: Option<u64>,
    /// The cores that it may have.
    may: Option<BTreeSet<CoreId>>,
    /// The cores that Millrace gave it.
    set: Option<BTreeSet<CoreId>>,
    /// Why its cores could not be set, as a sentence.
    refused: Option<String>,
}

impl Serve {
    /// A group that has not been read yet.
    pub fn new(directory: &Path) -> Serve {
        Serve { directory: directory.into(), inode: None, may: None, set: None, refused: None }
    }

    /// Checks that the group exists and that nobody else has changed it. It may have the cores that it had before any
    /// daemon changed them. Returns the problems, as sentences.
    pub fn look(&mut self, knobs: &Knobs) -> Vec<String> {
        let mut conditions: Vec<String> = self.refused.iter().cloned().collect();
        match self.find(knobs) {
            Ok(None) => {}
            Ok(Some(now)) => conditions.push(format!(
                "somebody else has set the cores of {} to {now}, and Millrace sets them again: let nothing else set them \
                 (systemd does when it reloads: set no AllowedCPUs= there)",
                self.directory.display()
            )),
            Err(error) => {
                (self.may, self.set) = (None, None);
                conditions.push(format!(
                    "applications keep their cores: cores.serve, {}: {error}",
                    self.directory.display()
                ));
            }
        }
        conditions
    }

    /// Reads the group. Returns its cores if somebody else has set them.
    fn find(&mut self, knobs: &Knobs) -> io::Result<Option<String>> {
        let roots = &knobs.roots;
        let own = fs::read_to_string(roots.proc("self/cpuset")).unwrap_or_default();
        if path(roots, &self.directory).is_some_and(|group| is_within(own.trim_end(), &group)) {
            return Err(io::Error::other("Millrace itself is in this group, but it has to run on all cores"));
        }
        let inode = fs::metadata(&self.directory)?.ino();
        if self.inode.replace(inode) != Some(inode) {
            (self.may, self.set) = (None, None);
        }
        let now = knobs.text(&self.knob())?;
        if self.may.is_none()
            && let Value::Text(had) = knobs.original(&self.knob(), Value::Text(now.clone()))
        {
            self.may = Some(self.allowed(&had)?);
        }
        if self.set.as_ref().is_none_or(|set| cpus::parse_list(&now).as_ref() == Some(set)) {
            return Ok(None);
        }
        self.set = None;
        Ok(Some(if now.is_empty() { "those of the group above".into() } else { now }))
    }

    /// The cores that the original list allows. In version 2 an empty list stands for all cores of the group above. No
    /// group has more cores than the group above.
    fn allowed(&self, had: &str) -> io::Result<BTreeSet<CoreId>> {
        let effective = ["cpuset.cpus.effective", "cpuset.effective_cpus"];
        let of_above = |above: &Path| effective.iter().find_map(|file| cores(&above.join(file)));
        let above = self.directory.parent().and_then(of_above);
        let listed = cpus::parse_list(had).filter(|cores| !cores.is_empty());
        let may = match (listed, above) {
            (Some(listed), Some(above)) => Some(listed.intersection(&above).copied().collect()),
            (listed, above) => listed.or(above),
        };
        may.filter(|may: &BTreeSet<CoreId>| !may.is_empty())
            .ok_or_else(|| io::Error::other("the group has no cores"))
    }

    /// The cores that it may have; `None`: unknown, or there is no such group.
    pub fn may(&self) -> Option<&BTreeSet<CoreId>> {
        self.may.as_ref()
    }

    /// Gives it these cores, unless it has them already.
    pub fn give(&mut self, knobs: &mut Knobs, cores: BTreeSet<CoreId>) {
        if self.set.as_ref() == Some(&cores) || cores.is_empty() {
            return;
        }
        let list = cpus::list(&cores);
        let given = knobs.set(&self.knob(), &Value::Text(list.clone()));
        let directory = self.directory.display();
        let refused =
            given.map_err(|error| format!("the cores of {directory} cannot be set to {list}: {error}"));
        (self.set, self.refused) = (refused.is_ok().then_some(cores), refused.err());
    }

    fn knob(&self) -> Knob {
        Knob { device: String::new(), what: What::Cpuset { directory: self.directory.clone() } }
    }

    /// The cores that it was given.
    pub fn set(&self) -> Option<&BTreeSet<CoreId>> {
        self.set.as_ref()
    }
}

/// The file with the list of a control group's cores.
pub(super) fn file(directory: &Path) -> PathBuf {
    directory.join("cpuset.cpus")
}

/// The path of a directory's control group within its hierarchy, as in /proc/PID/cpuset; `None`: the directory is not a
/// control group.
pub(super) fn path(roots: &Roots, directory: &Path) -> Option<PathBuf> {
    let mounts = fs::read_to_string(roots.proc("self/mountinfo")).ok()?;
    // "36 35 98:0 /root /mount options - type source" (proc_pid_mountinfo(5)).
    let mount = |line: &str| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let point = PathBuf::from(mount.split(' ').nth(4)?);
        (filesystem.starts_with("cgroup") && directory.starts_with(&point)).then_some(point)
    };
    let point = mounts.lines().filter_map(mount).max_by_key(|point| point.as_os_str().len())?;
    Some(Path::new("/").join(directory.strip_prefix(point).ok()?))
}

/// Whether a process of this cpuset (/proc/PID/cpuset) is in the group of this path, or in one below.
pub(super) fn is_within(cpuset: &str, group: &Path) -> bool {
    Path::new(cpuset).starts_with(group)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{fake::Fake, tree::Tree},
        *,
    };

    /// A group below one with cores 0 to 3.
    struct World {
        tree: Tree,
        serve: Serve,
        knobs: Knobs,
    }

    impl World {
        fn new(list: &str) -> World {
            let tree = Tree::new();
            tree.write("cgroup/cpuset.cpus.effective", "0-3\n");
            tree.write("cgroup/apps/cpuset.cpus", list);
            World { serve: World::serve(&tree), knobs: World::knobs(&tree), tree }
        }

        fn serve(tree: &Tree) -> Serve {
            Serve::new(&tree.path("cgroup/apps"))
        }

        fn knobs(tree: &Tree) -> Knobs {
            Knobs::open(tree.path("m.cores"), tree.roots(), Fake::default())
        }

        fn look(&mut self) -> Vec<String> {
            self.serve.look(&self.knobs)
        }

        fn give(&mut self, cores: &[CoreId]) {
            self.serve.give(&mut self.knobs, cores.iter().copied().collect());
        }

        /// Starts another daemon, as after kill -9.
        fn killed(&mut self) {
            self.serve = World::serve(&self.tree);
            self.knobs = World::knobs(&self.tree);
        }

        fn list(&self) -> String {
            self.tree.read("cgroup/apps/cpuset.cpus")
        }
    }

    #[test]
    fn a_group_follows_and_gets_its_original_cores_back() {
        // An empty list of version 2, a list of its own, and a list with more cores than the group above.
        for (list, may) in
            [("\n", [0, 1, 2, 3].into()), ("1-2\n", [1, 2].into()), ("2-9\n", BTreeSet::from([2, 3]))]
        {
            let mut world = World::new(list);
            assert_eq!((world.look(), world.serve.may()), (vec![], Some(&may)));
            world.give(&[2]);
            world.give(&[]);
            assert_eq!((world.list(), world.look()), ("2".into(), vec![]));
            // The cores that it was given are not mistaken for the original ones.
            world.killed();
            assert_eq!((world.look(), world.serve.may()), (vec![], Some(&may)));
            assert_eq!(world.knobs.put_back(), Vec::<String>::new());
            assert_eq!(world.list().trim(), list.trim());
        }
    }

    #[test]
    fn a_change_by_somebody_else_is_reported_and_undone() {
        let mut world = World::new("0-3\n");
        world.look();
        world.give(&[1, 2, 3]);
        world.tree.write("cgroup/apps/cpuset.cpus", "\n");
        let conditions = world.look();
        assert!(conditions[0].starts_with("somebody else has set the cores of "), "{conditions:?}");
        assert!(conditions[0].contains("/apps to those of the group above, and"), "{conditions:?}");
        world.give(&[1, 2, 3]);
        assert_eq!((world.list(), world.look()), ("1-3".into(), vec![]));
        // The group is removed and created again.
        world.tree.remove("cgroup/apps");
        assert!(world.look()[0].starts_with("applications keep their cores"));
        assert_eq!(world.serve.may(), None);
        world.tree.write("cgroup/other/cpuset.cpus", "2\n");
        world.tree.write("cgroup/apps/cpuset.cpus", "0-3\n");
        world.knobs.forget_gone().unwrap();
        assert_eq!((world.look(), world.serve.may()), (vec![], Some(&[0, 1, 2, 3].into())));
        world.give(&[3]);
        assert_eq!(world.list(), "3");
    }

    #[test]
    fn cores_that_somebody_has_set_since_stay() {
        let mut world = World::new("0-3\n");
        world.look();
        world.give(&[1, 2, 3]);
        // The daemon is killed, and somebody sets the cores.
        world.tree.write("cgroup/apps/cpuset.cpus", "0-1\n");
        world.killed();
        assert_eq!(world.knobs.put_back(), Vec::<String>::new());
        assert_eq!(world.list(), "0-1\n");
    }

    #[test]
    fn a_refused_list_is_reported_until_it_is_accepted() {
        let mut world = World::new("0-3\n");
        world.look();
        // A directory of that name accepts no list.
        let file = world.tree.path("cgroup/apps/cpuset.cpus");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        world.give(&[1]);
        assert!(world.look()[0].contains("/apps cannot be set to 1: "));
        fs::remove_dir(&file).unwrap();
        world.tree.write("cgroup/apps/cpuset.cpus", "0-3\n");
        assert_eq!(world.look().len(), 1);
        world.give(&[1]);
        assert_eq!((world.look(), world.list()), (vec![], "1".into()));
    }

    #[test]
    fn groups_below_belong_to_it_and_millrace_must_not() {
        let mut world = World::new("0-3\n");
        let point = world.tree.path("cgroup");
        let mounts = format!(
            "24 1 0:5 / / rw - ext4 /dev/a rw\n30 24 0:26 / {} rw shared:9 - cgroup2 none rw\n",
            point.display()
        );
        world.tree.write("proc/self/mountinfo", &mounts);
        let roots = world.tree.roots();
        let apps = path(&roots, &point.join("apps")).unwrap();
        assert_eq!(apps, Path::new("/apps"));
        assert_eq!(path(&roots, Path::new("/home/apps")), None);
        for (cpuset, within) in [
            ("/apps", true),
            ("/apps/web", true),
            ("/", false),
            ("/app", false),
            ("/other/apps", false),
            ("", false),
        ] {
            assert_eq!(is_within(cpuset, &apps), within, "{cpuset}");
        }
        world.tree.write("proc/self/cpuset", "/apps/router\n");
        assert!(world.look()[0].contains("Millrace itself is in this group"));
        assert_eq!(world.serve.may(), None);
    }
}
