//! Which processors this process may use, how many physical cores they make, and on how many memory nodes they sit.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

const DEVICES: &str = "/sys/devices";
/// More than any machine numbers its processors: a list that goes beyond is damaged.
const MOST_CPUS: usize = 1 << 16;

/// Physical cores this process may use, performance cores if there are two kinds; fewer where a control group grants
/// less time (the standard library rounds its quota down, to 1 at least). Hyper-threads share the units that decoding
/// waits for.
pub fn default_threads() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = allowed_cpus().and_then(|cpus| physical_cores(Path::new(DEVICES), cpus));
    cores.map_or(allowed, |cores| cores.clamp(1, allowed))
}

/// The processors of each memory node that this process may use, as lists such as `0-31,64-95`. Empty where the system
/// tells of no nodes.
pub fn memory_nodes() -> Vec<String> {
    allowed_cpus().map_or(Vec::new(), |cpus| nodes_of(Path::new(DEVICES), &cpus))
}

/// The affinity mask.
fn allowed_cpus() -> Option<BTreeSet<usize>> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    cpu_list(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?)
}

fn physical_cores(devices: &Path, mut cpus: BTreeSet<usize>) -> Option<usize> {
    // Only there beside efficiency cores, which would make every region wait for them.
    let fast = fs::read_to_string(devices.join("cpu_core/cpus")).ok().and_then(|list| cpu_list(&list));
    if let Some(fast) = fast.filter(|fast| !fast.is_disjoint(&cpus)) {
        cpus.retain(|cpu| fast.contains(cpu));
    }
    let mut cores = 0;
    while let Some(cpu) = cpus.pop_first() {
        let siblings = devices.join(format!("system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        let siblings = cpu_list(&fs::read_to_string(siblings).ok()?)?;
        cpus.retain(|cpu| !siblings.contains(cpu));
        cores += 1;
    }
    (cores > 0).then_some(cores)
}

fn nodes_of(devices: &Path, cpus: &BTreeSet<usize>) -> Vec<String> {
    let online = fs::read_to_string(devices.join("system/node/online")).ok().and_then(|list| cpu_list(&list));
    let lists = online.into_iter().flatten().filter_map(|node| {
        let list = fs::read_to_string(devices.join(format!("system/node/node{node}/cpulist"))).ok()?;
        // A node of memory alone has an empty list.
        let is_ours = cpu_list(&list).is_some_and(|node| !node.is_disjoint(cpus));
        is_ours.then(|| list.trim().to_string())
    });
    lists.collect()
}

/// Numbers and ranges as the kernel lists them, `0-31,64-95`.
fn cpu_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MOST_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder like /sys/devices with these files.
    fn devices(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        root
    }

    fn set(list: &str) -> BTreeSet<usize> {
        cpu_list(list).unwrap()
    }

    #[test]
    fn lists_of_the_kernel_are_read_and_others_refused() {
        assert_eq!(set("0-2,7,10-11\n").into_iter().collect::<Vec<_>>(), [0, 1, 2, 7, 10, 11]);
        assert_eq!((set("0-31,64-95").len(), set("").len()), (64, 0));
        for list in ["a", "1-", "-1", "0-99999999999", "1;2"] {
            assert_eq!(cpu_list(list), None, "{list}");
        }
    }

    #[test]
    fn two_threads_of_a_core_count_once_and_efficiency_cores_not_at_all() {
        let name = |cpu| format!("system/cpu/cpu{cpu}/topology/thread_siblings_list");
        // Cores of two threads each (0 and 4, 1 and 5), then two of one thread.
        let names: Vec<String> = [0, 4, 1, 5, 2, 3].map(name).to_vec();
        let siblings = ["0,4", "0,4", "1,5", "1,5", "2", "3"];
        let mut files: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(siblings).collect();
        let plain = devices(&files);
        for (allowed, cores) in [("0-5", 4), ("0,4", 1), ("4-5", 2), ("2-3", 2), ("0-1", 2)] {
            assert_eq!(physical_cores(plain.path(), set(allowed)), Some(cores), "{allowed}");
        }
        assert_eq!(physical_cores(plain.path(), set("0-6")), None, "nothing is known of processor 6");
        files.push(("cpu_core/cpus", "0-1,4-5"));
        let hybrid = devices(&files);
        for (allowed, cores) in [("0-5", 2), ("1-3", 1), ("2-3", 2)] {
            assert_eq!(physical_cores(hybrid.path(), set(allowed)), Some(cores), "{allowed}");
        }
    }

    #[test]
    fn nodes_are_counted_where_this_process_may_run() {
        let root = devices(&[
            ("system/node/online", "0-2"),
            ("system/node/node0/cpulist", "0-31,64-95"),
            ("system/node/node1/cpulist", "32-63,96-127"),
            ("system/node/node2/cpulist", ""),
        ]);
        assert_eq!(nodes_of(root.path(), &set("0-127")), ["0-31,64-95", "32-63,96-127"]);
        assert_eq!(nodes_of(root.path(), &set("70-80")), ["0-31,64-95"]);
        assert_eq!(nodes_of(devices(&[]).path(), &set("0-3")), [""; 0]);
    }

    #[test]
    fn there_is_a_thread_by_default() {
        let processors = std::thread::available_parallelism().unwrap().get();
        assert!((1..=processors).contains(&default_threads()));
    }
}
