//! The cpuset of applications: a control group whose cores are those that do not forward (Q1).
//!
//! Both versions of control groups call the file alike (`Documentation/admin-guide/cgroup-v1/cpusets.rst`, cgroup-v2.rst); what an
//! empty one stands for they call differently. Writing it makes the kernel move threads, and wait for others: this is for the thread
//! that may take long.

use super::{CoreId, cores, originals::Originals};
use logic::cpus;
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// The control group, and the cores that it may have.
#[derive(Debug)]
pub struct Serve {
    directory: PathBuf,
    may: Option<BTreeSet<CoreId>>,
    set: Option<BTreeSet<CoreId>>,
    /// Why it does not follow, as a sentence.
    pub trouble: Option<String>,
}

impl Serve {
    /// Not opened yet.
    pub fn new(directory: &Path) -> Serve {
        Serve { directory: directory.into(), may: None, set: None, trouble: None }
    }

    /// Reads which cores it may have, if that is not known yet: those that it had before anybody changed them.
    pub fn open(&mut self, originals: &mut Originals) {
        if self.may.is_some() {
            return;
        }
        match self.find(originals) {
            Ok(may) => (self.may, self.trouble) = (Some(may), None),
            Err(error) => {
                self.trouble = Some(format!(
                    "applications keep their cores: cores.serve, {}: {error}",
                    self.directory.display()
                ));
            }
        }
    }

    fn find(&self, originals: &mut Originals) -> io::Result<BTreeSet<CoreId>> {
        let had = originals.note_cpuset(&self.directory)?;
        let effective = ["cpuset.cpus.effective", "cpuset.effective_cpus"];
        // An empty one of version 2 has what the group above has.
        let inherited = || effective.iter().find_map(|file| cores(&self.directory.join(file)));
        let may = cpus::parse_list(&had).filter(|cores| !cores.is_empty()).or_else(inherited);
        may.filter(|cores| !cores.is_empty()).ok_or_else(|| io::Error::other("it has no cores"))
    }

    /// The cores that it may have; `None`: it is not known, or not there.
    pub fn may(&self) -> Option<&BTreeSet<CoreId>> {
        self.may.as_ref()
    }

    /// Gives it these cores.
    pub fn give(&mut self, cores: BTreeSet<CoreId>) {
        if self.set.as_ref() == Some(&cores) || cores.is_empty() {
            return;
        }
        match fs::write(file(&self.directory), cpus::list(&cores)) {
            Ok(()) => (self.set, self.trouble) = (Some(cores), None),
            Err(error) => {
                let what = cpus::list(&cores);
                let directory = self.directory.display();
                self.trouble = Some(format!("{directory} does not get cores {what}: {error}"));
                // It may be another one by now.
                (self.may, self.set) = (None, None);
            }
        }
    }

    /// What it has.
    pub fn set(&self) -> Option<&BTreeSet<CoreId>> {
        self.set.as_ref()
    }
}

/// The list of a control group's cores.
pub(super) fn file(directory: &Path) -> PathBuf {
    directory.join("cpuset.cpus")
}

/// Is a process of this cpuset (/proc/PID/cpuset) in the group of this directory, or in one below? Where the hierarchy is mounted
/// does not matter.
pub(super) fn is_within(cpuset: &str, directory: &Path) -> bool {
    Path::new(cpuset)
        .ancestors()
        .filter_map(|above| above.strip_prefix("/").ok())
        .any(|above| above != Path::new("") && directory.ends_with(above))
}

#[cfg(test)]
mod tests {
    use super::{super::tree::Tree, *};

    #[test]
    fn a_group_follows_and_gets_back_what_it_had() {
        let tree = Tree::new();
        tree.write("apps/cpuset.cpus", "0-3\n");
        let directory = tree.path("apps");
        let mut originals = Originals::read(tree.path("m.cores"));
        let mut serve = Serve::new(&directory);
        serve.open(&mut originals);
        assert_eq!(serve.may(), Some(&[0, 1, 2, 3].into()));
        serve.give([1, 2, 3].into());
        assert_eq!(tree.read("apps/cpuset.cpus"), "1-3");
        tree.write("apps/cpuset.cpus", "somebody's");
        serve.give([1, 2, 3].into());
        assert_eq!(tree.read("apps/cpuset.cpus"), "somebody's", "nothing new is not written");
        serve.give([].into());
        serve.give([3].into());
        assert_eq!(tree.read("apps/cpuset.cpus"), "3");
        // The next daemon, after kill -9.
        let mut originals = Originals::read(tree.path("m.cores"));
        let mut serve = Serve::new(&directory);
        serve.open(&mut originals);
        assert_eq!(serve.may(), Some(&[0, 1, 2, 3].into()));
        let nobody = super::super::fake::Fake::default();
        assert_eq!(originals.put_back(&tree.roots(), &nobody), Vec::<String>::new());
        assert_eq!(tree.read("apps/cpuset.cpus"), "0-3\n");
    }

    #[test]
    fn an_empty_one_has_what_the_group_above_has() {
        for effective in ["cpuset.cpus.effective", "cpuset.effective_cpus"] {
            let tree = Tree::new();
            tree.write("apps/cpuset.cpus", "\n");
            let mut serve = Serve::new(&tree.path("apps"));
            let mut originals = Originals::read(tree.path("m.cores"));
            serve.open(&mut originals);
            assert!(serve.trouble.as_ref().unwrap().ends_with("it has no cores"), "{serve:?}");
            tree.write(&format!("apps/{effective}"), "2-3\n");
            serve.open(&mut originals);
            assert_eq!((serve.may(), &serve.trouble), (Some(&[2, 3].into()), &None));
        }
    }

    #[test]
    fn a_group_that_is_not_there_is_told_and_may_come_later() {
        let tree = Tree::new();
        let mut originals = Originals::read(tree.path("m.cores"));
        let mut serve = Serve::new(&tree.path("apps"));
        serve.open(&mut originals);
        assert!(serve.trouble.as_ref().unwrap().contains("apps: "), "{serve:?}");
        assert!(serve.may().is_none() && originals.is_empty());
        tree.write("apps/cpuset.cpus", "1\n");
        serve.open(&mut originals);
        assert_eq!((serve.may(), &serve.trouble), (Some(&[1].into()), &None));
        tree.remove("apps");
        serve.give([1].into());
        assert!(serve.trouble.as_ref().unwrap().contains("does not get cores 1"), "{serve:?}");
        assert_eq!(serve.may(), None);
    }

    #[test]
    fn groups_below_belong_to_it() {
        let apps = Path::new("/sys/fs/cgroup/cpuset/apps");
        for (cpuset, within) in [
            ("/apps", true),
            ("/apps/web", true),
            ("/", false),
            ("/app", false),
            ("/other/apps", false),
            ("", false),
        ] {
            assert_eq!(is_within(cpuset, apps), within, "{cpuset}");
        }
        assert!(is_within("/system.slice/apps.scope", Path::new("/sys/fs/cgroup/system.slice")));
    }
}
