//! What this machine can give: memory now free for us, and why not more.

use std::fs;

/// Bytes that this process may still take, and which limit says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    pub bytes: u64,
    pub limit: &'static str,
}

/// The tightest of the limits this system tells us of; `None` where it tells nothing.
pub fn available_memory() -> Option<Memory> {
    let found = [
        (mem_available(), "free memory"),
        (cgroup_available(), "the memory limit of this control group"),
        (address_space_available(), "the address space limit (ulimit -v)"),
    ];
    let found = found.into_iter().filter_map(|(bytes, limit)| Some(Memory { bytes: bytes?, limit }));
    found.min_by_key(|memory| memory.bytes)
}

/// Bytes of memory in the machine, or in its control group if that is less.
pub fn total_memory() -> Option<u64> {
    let machine = meminfo("MemTotal:");
    [machine, cgroup_limits().map(|(limit, _)| limit)].into_iter().flatten().min()
}

fn mem_available() -> Option<u64> {
    meminfo("MemAvailable:")
}

fn meminfo(key: &str) -> Option<u64> {
    kib_line(&fs::read_to_string("/proc/meminfo").ok()?, key)
}

/// The number of a line such as `MemAvailable:   123 kB`, in bytes.
fn kib_line(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    line[key.len()..].trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn cgroup_available() -> Option<u64> {
    cgroup_limits().map(|(limit, used)| limit.saturating_sub(used))
}

/// (limit, used without what the kernel can drop) of the tightest control group above us.
fn cgroup_limits() -> Option<(u64, u64)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mut tightest: Option<(u64, u64)> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, limit_file, used_file, cache_key) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max", "memory.current", "file "),
            names if names.split(',').any(|name| name == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache ")
            }
            _ => continue,
        };
        // Inside a container the path may not exist below the mount: then the root is the group itself.
        let mut path = path.trim_end_matches('/').to_string();
        loop {
            let folder = format!("{root}{path}");
            let read = |file: &str| fs::read_to_string(format!("{folder}/{file}")).ok();
            let number = |file: &str| read(file)?.trim().parse::<u64>().ok();
            if let (Some(limit), Some(used)) = (number(limit_file), number(used_file)) {
                let cache = read("memory.stat").and_then(|text| stat_line(&text, cache_key)).unwrap_or(0);
                let used = used.saturating_sub(cache);
                if tightest.is_none_or(|(l, u)| limit.saturating_sub(used) < l.saturating_sub(u)) {
                    tightest = Some((limit, used));
                }
            }
            match path.rfind('/') {
                Some(cut) => path.truncate(cut),
                None => break,
            }
        }
    }
    tightest
}

/// The number behind `key` in memory.stat, which counts bytes.
fn stat_line(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key))?.trim().parse().ok()
}

/// RLIMIT_AS less what is mapped already (the weights among it).
fn address_space_available() -> Option<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::As).current?;
    let mapped = fs::read_to_string("/proc/self/status").ok().and_then(|text| kib_line(&text, "VmSize:"));
    // The allocator and the stacks of threads map more than they use: a quarter stays theirs.
    Some(limit.saturating_sub(mapped.unwrap_or(0)) / 4 * 3)
}

/// The processor's name for people, if the system tells it.
pub fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_string())
}

/// Bytes of the largest cache that a core reads through, if the system tells it.
pub fn largest_cache_bytes() -> Option<u64> {
    let size = |index: u32| fs::read_to_string(format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")).ok();
    let bytes = |text: String| text.trim().trim_end_matches('K').parse::<u64>().ok()?.checked_mul(1024);
    (0..).map_while(size).filter_map(bytes).max()
}

pub fn mib(bytes: u64) -> String {
    let mib = bytes as f64 / (1024.0 * 1024.0);
    if mib < 10.0 { format!("{mib:.1} MiB") } else { format!("{mib:.0} MiB") }
}

/// In the unit that reads best.
pub fn size(bytes: u64) -> String {
    const ABOVE_MIB: [(u32, &str); 4] = [(60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB")];
    match ABOVE_MIB.iter().find(|(bits, _)| bytes >> bits > 0) {
        Some((bits, unit)) => format!("{:.2} {unit}", bytes as f64 / 2f64.powi(*bits as i32)),
        None if bytes >= 1 << 20 => mib(bytes),
        None => format!("{:.1} KiB", bytes as f64 / 1024.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_tables_are_read() {
        let text = "MemTotal:       16000 kB\nMemAvailable:    8000 kB\n";
        assert_eq!(kib_line(text, "MemAvailable:"), Some(8000 * 1024));
        assert_eq!(kib_line(text, "SwapTotal:"), None);
        assert_eq!(stat_line("anon 5\nfile 4096\nfile_mapped 7\n", "file "), Some(4096));
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available_memory().is_none_or(|memory| memory.bytes > 0));
        assert!(total_memory().is_none_or(|bytes| bytes > 1 << 20));
        assert!(largest_cache_bytes().is_none_or(|bytes| bytes >= 1 << 14));
        assert!(processor().is_none_or(|name| !name.is_empty()));
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!((mib(1 << 20), mib(1536 << 20)), ("1.0 MiB".to_string(), "1536 MiB".to_string()));
        assert_eq!([512, 5 << 20, 1536 << 20, u64::MAX].map(size), ["0.5 KiB", "5.0 MiB", "1.50 GiB", "16.00 EiB"]);
    }
}
