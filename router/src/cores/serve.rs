//! The cpuset of applications: a control group whose cores are those that do not forward (Q1).
//!
//! Both versions of control groups call the file alike (`Documentation/admin-guide/cgroup-v1/cpusets.rst`, cgroup-v2.rst); what an
//! empty one stands for they call differently. Writing it makes the kernel move threads, and wait for others: this is for the thread
//! that may take long. Whoever made the group may change it too, or make it anew (systemd does both): it is looked at each second.

use super::{CoreId, Roots, cores, originals::Originals};
use logic::cpus;
use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// The control group, and the cores that it may have.
#[derive(Debug)]
pub struct Serve {
    directory: PathBuf,
    /// Which directory of that name it was.
    inode: Option<u64>,
    may: Option<BTreeSet<CoreId>>,
    set: Option<BTreeSet<CoreId>>,
    /// Why it cannot be given cores, as a sentence.
    refused: Option<String>,
}

impl Serve {
    /// Not looked at yet.
    pub fn new(directory: &Path) -> Serve {
        Serve { directory: directory.into(), inode: None, may: None, set: None, refused: None }
    }

    /// Is it still there and as it was left? Which cores it may have is what it had before anybody here changed them. Says, as
    /// sentences, what is wrong.
    pub fn look(&mut self, roots: &Roots, originals: &mut Originals) -> Vec<String> {
        let mut troubles: Vec<String> = self.refused.iter().cloned().collect();
        match self.find(roots, originals) {
            Ok(None) => {}
            Ok(Some(now)) => troubles.push(format!(
                "{} was given cores {now} by somebody else, and is given its own again: whoever does that (systemd does when it \
                 reloads) had better leave it alone",
                self.directory.display()
            )),
            Err(error) => {
                (self.may, self.set) = (None, None);
                troubles.push(format!(
                    "applications keep their cores: cores.serve, {}: {error}",
                    self.directory.display()
                ));
            }
        }
        troubles
    }

    /// The cores that somebody else gave it, if so.
    fn find(&mut self, roots: &Roots, originals: &mut Originals) -> io::Result<Option<String>> {
        let own = fs::read_to_string(roots.proc("self/cpuset")).unwrap_or_default();
        if path(roots, &self.directory).is_some_and(|group| is_within(own.trim_end(), &group)) {
            return Err(io::Error::other("Millrace itself is in it, and has to run on all cores"));
        }
        let inode = fs::metadata(&self.directory)?.ino();
        if self.inode.replace(inode) != Some(inode) {
            (self.may, self.set) = (None, None);
        }
        let now = fs::read_to_string(file(&self.directory))?.trim().to_owned();
        if self.may.is_none() {
            let had = originals.note_cpuset(&self.directory)?;
            self.may = Some(self.allowed(&had)?);
        }
        let changed = self.set.as_ref().is_some_and(|set| cpus::parse_list(&now).as_ref() != Some(set));
        if changed {
            self.set = None;
        }
        Ok(changed.then_some(now).map(|now| if now.is_empty() { "of the group above".into() } else { now }))
    }

    /// Of the list that it had: an empty one of version 2 has what the group above has, and none has more than that.
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
            .ok_or_else(|| io::Error::other("it has no cores"))
    }

    /// The cores that it may have; `None`: it is not known, or not there.
    pub fn may(&self) -> Option<&BTreeSet<CoreId>> {
        self.may.as_ref()
    }

    /// Gives it these cores, if it has others.
    pub fn give(&mut self, cores: BTreeSet<CoreId>) {
        if self.set.as_ref() == Some(&cores) || cores.is_empty() {
            return;
        }
        let list = cpus::list(&cores);
        match fs::write(file(&self.directory), &list) {
            Ok(()) => (self.set, self.refused) = (Some(cores), None),
            Err(error) => {
                let directory = self.directory.display();
                (self.set, self.refused) =
                    (None, Some(format!("{directory} does not get cores {list}: {error}")));
            }
        }
    }

    /// What it was given.
    pub fn set(&self) -> Option<&BTreeSet<CoreId>> {
        self.set.as_ref()
    }
}

/// The list of a control group's cores.
pub(super) fn file(directory: &Path) -> PathBuf {
    directory.join("cpuset.cpus")
}

/// The path of the control group of a directory within its hierarchy, as /proc/PID/cpuset has it; `None`: it is in none.
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

/// Is a process of this cpuset (/proc/PID/cpuset) in the group of this path, or in one below?
pub(super) fn is_within(cpuset: &str, group: &Path) -> bool {
    Path::new(cpuset).starts_with(group)
}

#[cfg(test)]
mod tests {
    use super::{
        super::{fake::Fake, tree::Tree},
        *,
    };

    /// A group with this list, below one with cores 0 to 3.
    struct World {
        tree: Tree,
        serve: Serve,
        originals: Originals,
    }

    impl World {
        fn new(list: &str) -> World {
            let tree = Tree::new();
            tree.write("cgroup/cpuset.cpus.effective", "0-3\n");
            tree.write("cgroup/apps/cpuset.cpus", list);
            World { serve: World::serve(&tree), originals: Originals::read(tree.path("m.cores")), tree }
        }

        fn serve(tree: &Tree) -> Serve {
            Serve::new(&tree.path("cgroup/apps"))
        }

        fn look(&mut self) -> Vec<String> {
            self.serve.look(&self.tree.roots(), &mut self.originals)
        }

        /// Another daemon, after kill -9.
        fn killed(&mut self) {
            self.serve = World::serve(&self.tree);
            self.originals = Originals::read(self.tree.path("m.cores"));
        }

        fn list(&self) -> String {
            self.tree.read("cgroup/apps/cpuset.cpus")
        }
    }

    #[test]
    fn a_group_follows_and_gets_back_what_it_had() {
        // An empty list of version 2, one of its own, and one that has more than is above.
        for (list, may) in
            [("\n", [0, 1, 2, 3].into()), ("1-2\n", [1, 2].into()), ("2-9\n", BTreeSet::from([2, 3]))]
        {
            let mut world = World::new(list);
            assert_eq!((world.look(), world.serve.may()), (vec![], Some(&may)));
            world.serve.give([2].into());
            world.serve.give([].into());
            assert_eq!((world.list(), world.look()), ("2".into(), vec![]));
            // What it was given is not taken for all that it may have.
            world.killed();
            assert_eq!((world.look(), world.serve.may()), (vec![], Some(&may)));
            assert_eq!(world.originals.put_back(&world.tree.roots(), &Fake::default()), Vec::<String>::new());
            assert_eq!(world.list().trim(), list.trim());
        }
    }

    #[test]
    fn what_somebody_else_did_is_told_and_undone() {
        let mut world = World::new("0-3\n");
        world.look();
        world.serve.give([1, 2, 3].into());
        world.tree.write("cgroup/apps/cpuset.cpus", "\n");
        assert!(world.look()[0].contains("was given cores of the group above by somebody else"));
        world.serve.give([1, 2, 3].into());
        assert_eq!((world.list(), world.look()), ("1-3".into(), vec![]));
        // Made anew.
        world.tree.remove("cgroup/apps");
        assert!(world.look()[0].starts_with("applications keep their cores"));
        assert_eq!(world.serve.may(), None);
        world.tree.write("cgroup/other/cpuset.cpus", "2\n");
        world.tree.write("cgroup/apps/cpuset.cpus", "0-3\n");
        world.originals.forget_gone(&world.tree.roots(), &Fake::default()).unwrap();
        assert_eq!((world.look(), world.serve.may()), (vec![], Some(&[0, 1, 2, 3].into())));
        world.serve.give([3].into());
        assert_eq!(world.list(), "3");
    }

    #[test]
    fn that_it_cannot_be_given_cores_is_told_until_it_can() {
        let mut world = World::new("0-3\n");
        world.look();
        // A directory of that name takes no list.
        let file = world.tree.path("cgroup/apps/cpuset.cpus");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        world.serve.give([1].into());
        assert!(world.look()[0].contains("does not get cores 1: "));
        fs::remove_dir(&file).unwrap();
        world.tree.write("cgroup/apps/cpuset.cpus", "0-3\n");
        assert_eq!(world.look().len(), 1);
        world.serve.give([1].into());
        assert_eq!((world.look(), world.list()), (vec![], "1".into()));
    }

    #[test]
    fn groups_below_belong_to_it_and_millrace_does_not() {
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
        assert!(world.look()[0].contains("Millrace itself is in it"));
        assert_eq!(world.serve.may(), None);
    }
}
