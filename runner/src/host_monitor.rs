//! Load of this host: processor, memory, disk, network, GPUs.

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, Networks, Pid, ProcessRefreshKind, ProcessesToUpdate};

/// Sampler of the host's load. Rates are averages since the previous sample.
pub struct HostMonitor {
    host: sysinfo::System,
    networks: Option<Networks>,
    /// NVIDIA management library; `None` without an NVIDIA driver.
    nvml: Option<Nvml>,
    processes: Vec<Pid>,
    folder: PathBuf,
    looked: Instant,
}

impl HostMonitor {
    /// Monitors the host, the processes of ranks and the file system of `folder`; `None` if the operating
    /// system is not supported.
    pub fn new(processes: &[u32], folder: impl Into<PathBuf>) -> Option<Self> {
        let mut host = sysinfo::System::new().ok()?;
        host.refresh_cpu_specifics(CpuRefreshKind::nothing().with_usage());
        Some(Self {
            host,
            networks: Networks::new_with_refreshed_list().ok(),
            nvml: Nvml::init().ok(),
            processes: processes.iter().copied().map(Pid::from_u32).collect(),
            folder: folder.into(),
            looked: Instant::now(),
        })
    }

    /// Returns all current figures by name, without those that this host cannot measure.
    ///
    /// `system.cpu_percent` is over all cores (100 if all are busy); `.resident_bytes` is the sum over the
    /// monitored processes; network rates are over all interfaces but the loopback.
    pub fn sample(&mut self) -> Vec<(String, f64)> {
        let seconds = self.looked.elapsed().as_secs_f64();
        self.looked = Instant::now();
        self.host.refresh_cpu_specifics(CpuRefreshKind::nothing().with_usage());
        self.host.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        let mut figures = vec![
            ("system.cpu_percent".to_owned(), f64::from(self.host.global_cpu_usage())),
            ("system.memory_used_bytes".to_owned(), self.host.used_memory() as f64),
        ];
        figures.extend(self.resident());
        if let Ok(disk) = rustix::fs::statvfs(&self.folder) {
            figures.push(("system.disk_free_bytes".to_owned(), disk.f_bavail as f64 * disk.f_frsize as f64));
        }
        figures.extend(self.network(seconds));
        if let Some(nvml) = &self.nvml {
            figures.extend(gpus(nvml));
        }
        figures
    }

    fn resident(&mut self) -> Option<(String, f64)> {
        if self.processes.is_empty() {
            return None;
        }
        let wanted = ProcessesToUpdate::Some(&self.processes);
        self.host.refresh_processes_specifics(wanted, true, ProcessRefreshKind::nothing().with_memory());
        let bytes: u64 =
            self.processes.iter().filter_map(|id| self.host.process(*id)).map(sysinfo::Process::memory).sum();
        Some(("system.resident_bytes".to_owned(), bytes as f64))
    }

    fn network(&mut self, seconds: f64) -> Vec<(String, f64)> {
        let Some(networks) = &mut self.networks else { return Vec::new() };
        networks.refresh(true);
        if seconds <= 0.0 {
            return Vec::new();
        }
        let outside =
            || networks.iter().filter(|(name, _)| name.as_os_str() != "lo").map(|(_, network)| network);
        let received: u64 = outside().map(sysinfo::NetworkData::received).sum();
        let sent: u64 = outside().map(sysinfo::NetworkData::transmitted).sum();
        vec![
            ("system.received_bytes_per_second".to_owned(), received as f64 / seconds),
            ("system.sent_bytes_per_second".to_owned(), sent as f64 / seconds),
        ]
    }
}

/// Returns load, memory, power and temperature of each GPU by name, as the driver reports them.
fn gpus(nvml: &Nvml) -> Vec<(String, f64)> {
    let mut figures = Vec::new();
    for index in 0..nvml.device_count().unwrap_or(0) {
        let Ok(gpu) = nvml.device_by_index(index) else { continue };
        let mut tell = |name: &str, value: Option<f64>| {
            figures.extend(value.map(|value| (format!("gpu.{index}.{name}"), value)));
        };
        tell("busy_percent", gpu.utilization_rates().ok().map(|rates| f64::from(rates.gpu)));
        tell("memory_used_bytes", gpu.memory_info().ok().map(|memory| memory.used as f64));
        tell("power_watts", gpu.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3));
        tell("temperature_celsius", gpu.temperature(TemperatureSensor::Gpu).ok().map(f64::from));
    }
    figures
}

/// Thread that samples the load of the host until this value is dropped.
#[derive(Debug)]
pub struct LoadSampler {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl LoadSampler {
    /// Starts a thread that passes the figures of `system` to `sink` after every `interval`.
    pub fn start(
        mut system: HostMonitor,
        interval: Duration,
        mut sink: impl FnMut(Vec<(String, f64)>) + Send + 'static,
    ) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                sink(system.sample());
            }
        });
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for LoadSampler {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn the_host_is_told_with_sensible_figures() {
        let mut system = HostMonitor::new(&[std::process::id()], "/").expect("this host can be watched");
        std::thread::sleep(Duration::from_millis(250));
        let figures: std::collections::BTreeMap<_, _> = system.sample().into_iter().collect();
        assert!((0.0..=100.0).contains(&figures["system.cpu_percent"]), "{figures:?}");
        assert!(figures["system.memory_used_bytes"] > 1e6, "{figures:?}");
        assert!(figures["system.resident_bytes"] > 1e5, "{figures:?}");
        assert!(figures["system.disk_free_bytes"] > 0.0, "{figures:?}");
        assert!(figures.values().all(|value| value.is_finite()), "{figures:?}");
    }

    #[test]
    fn a_sampler_samples_until_it_is_dropped() {
        let seen = Arc::new(Mutex::new(0));
        let (count, told) = (seen.clone(), mpsc::channel());
        let (tell, heard) = told;
        let system = HostMonitor::new(&[], "/").expect("this host can be watched");
        let sampler = LoadSampler::start(system, Duration::from_millis(5), move |figures| {
            assert!(!figures.is_empty());
            *count.lock().expect("whole") += 1;
            let _sent = tell.send(());
        });
        for _ in 0..2 {
            heard.recv_timeout(Duration::from_secs(10)).expect("a sample");
        }
        drop(sampler);
        let after = *seen.lock().expect("whole");
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(*seen.lock().expect("whole"), after, "the thread is gone");
    }
}
