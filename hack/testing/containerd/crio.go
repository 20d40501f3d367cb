package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// crioConfig is CRI-O's configuration. Its paths are of this daemon alone. Each sandbox has a process, as in pods that share process ids;
// by default CRI-O makes none for the others.
const crioConfig = `[crio]
  root = "DIR/root"
  runroot = "DIR/state"
  storage_driver = "STORAGE"
  log_dir = "DIR/logs"
  version_file = "DIR/state/version"
  clean_shutdown_file = "DIR/state/clean"
[crio.api]
  listen = "DIR/s"
[crio.runtime]
  default_runtime = "runc"
  cgroup_manager = "MANAGER"
  conmon_cgroup = "CONMON"
  no_pivot = NOPIVOT
  pinns_path = "PROGRAMS/pinns"
  namespaces_dir = "DIR/state"
  container_exits_dir = "DIR/state/exits"
  container_attach_socket_dir = "DIR/state"
  cdi_spec_dirs = ["DIR/cdi"]
  drop_infra_ctr = false
  enable_pod_events = true
  hooks_dir = []
  irqbalance_config_restore_file = "disable"
  enable_criu_support = false
  log_level = "warn"
[crio.runtime.runtimes.runc]
  runtime_path = "DIR/oci"
  runtime_root = "DIR/runc"
  monitor_path = "CONMONPATH"
[crio.image]
  pause_image = "` + PauseImage + `"
  pause_command = ""
  signature_policy = "DIR/policy.json"
[crio.network]
  network_dir = "DIR/cni/conf"
  plugin_dirs = ["DIR/cni/bin"]
[crio.nri]
  enable_nri = true
  nri_listen = "DIR/n"
  nri_plugin_dir = "DIR/nri"
  nri_plugin_config_dir = "DIR/nri"
  nri_plugin_registration_timeout = "60s"
  nri_plugin_request_timeout = "20s"
`

// softened is called by CRI-O in place of runc. CRI-O asks for what a machine may not have: a score of the out-of-memory killer that only
// CAP_SYS_RESOURCE may lower, and limits of huge pages without their controller. containerd leaves both out.
const softened = `#!/bin/sh
case " $* " in
*" create "*)
	for argument; do
		[ "$previous" != --bundle ] && [ "$previous" != -b ] || bundle=$argument
		previous=$argument
	done
	sed -i -zE 'EDITS' "$bundle/config.json"
	if grep -q '"io.kubernetes.cri-o.ContainerType": *"sandbox"' "$bundle/config.json"; then : > DIR/sandboxes/"$argument"; fi
	DELAY
esac
exec PROGRAMS/runc "$@"
`

// crioProgram is the program of CRI-O in a folder that has it in place of containerd.
func crioProgram(programs string) string { return filepath.Join(programs, "crio") }

// configureCRIO writes what CRI-O reads into its directory.
func (d *Daemon) configureCRIO(systemd bool) error {
	manager, conmonCgroup, storage := "cgroupfs", "pod", "vfs"
	if systemd {
		manager, conmonCgroup = "systemd", "system.slice"
	}
	if snapshotter(d.dir) == "overlayfs" {
		storage = "overlay"
	}
	monitor, err := exec.LookPath("conmon")
	if err != nil {
		return fmt.Errorf("CRI-O starts containers with conmon; apt-get install conmon: %w", err)
	}
	if _, err := exec.LookPath("skopeo"); err != nil {
		return fmt.Errorf("images for CRI-O are copied with skopeo; apt-get install skopeo: %w", err)
	}
	d.storage = storage
	err = write(d.dir, map[string]string{
		"config.toml": strings.NewReplacer("DIR", d.dir, "PROGRAMS", d.programs, "STORAGE", storage, "MANAGER", manager,
			"CONMONPATH", monitor, "CONMON", conmonCgroup, "NOPIVOT", fmt.Sprint(inFirstFileSystem())).Replace(crioConfig),
		"policy.json":     `{"default": [{"type": "insecureAcceptAnything"}]}`,
		"registries.conf": "unqualified-search-registries = [\"docker.io\"]\nshort-name-mode = \"permissive\"\n",
		"storage.conf":    fmt.Sprintf("[storage]\ndriver = %q\ngraphroot = %q\nrunroot = %q\n", storage, d.dir+"/root", d.dir+"/state"),
	})
	if err != nil {
		return err
	}
	return d.replaceRunc("")
}

// softening are the changes that softened makes to a container's configuration, for sed.
func softening() string {
	edits := `s/"hugepageLimits": *\[[^]]*\]/"hugepageLimits": []/`
	if own, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil && !MayLowerScores() {
		edits += `; s/"oomScoreAdj": *-[0-9]+/"oomScoreAdj": ` + strings.TrimSpace(string(own)) + "/"
	}
	return edits
}

// Cgroup is the cgroup of a container, or of a sandbox, as containerd names it, below its pod's: with its id as the last part. CRI-O has a
// word in front. Empty for the cgroup of CRI-O's conmon, which is beside its container and none itself.
func Cgroup(of string) string {
	dir, name := filepath.Split(of)
	if strings.HasPrefix(name, "crio-conmon-") {
		return ""
	}
	return filepath.Join(dir, strings.TrimPrefix(name, "crio-"))
}

// crioEnvironment keeps CRI-O and skopeo from the machine's own files.
func (d *Daemon) crioEnvironment() []string {
	return append(os.Environ(), "CONTAINERS_STORAGE_CONF="+filepath.Join(d.dir, "storage.conf"),
		"CONTAINER_REGISTRIES_CONF="+filepath.Join(d.dir, "registries.conf"))
}

// copyImages copies the images of an archive to CRI-O's storage.
func (d *Daemon) copyImages(ctx context.Context, archive string, images []Image) error {
	at := fmt.Sprintf("containers-storage:[%s@%s+%s]", d.storage, filepath.Join(d.dir, "root"), filepath.Join(d.dir, "state"))
	for _, image := range images {
		for _, name := range image.Names {
			cmd := exec.CommandContext(ctx, "skopeo", "--policy", filepath.Join(d.dir, "policy.json"), "copy",
				"docker-archive:"+archive+":"+name, at+name)
			cmd.Env = d.crioEnvironment()
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("copy image %s: %w: %s", name, err, out)
			}
		}
	}
	return nil
}

// write writes files below a directory.
func write(dir string, files map[string]string) error {
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o755)); err != nil {
			return err
		}
	}
	return nil
}
