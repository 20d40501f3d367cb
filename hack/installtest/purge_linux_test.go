package installtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestPurge runs the scripts of the packages in a mount namespace of their own: the purge removes everything of berth's, and
// nothing of others. If a container of berthlet still has its file system mounted, its directory stays, with a message.
func TestPurge(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("not root: this test needs a mount namespace")
	}
	scripts := t.TempDir()
	for _, name := range packages {
		cmd := exec.CommandContext(t.Context(), "hack/package.sh", "scripts", name, filepath.Join(scripts, name))
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	const hidden = "set -e\nmount --make-rprivate /\nfor d in /var/lib /var/log /run /etc /sys/fs/cgroup; do mount -t tmpfs tmpfs $d; done\n" +
		"mkdir -p /var/lib/berth /run/berth/claims /var/lib/berthlet/runtime /etc/berth/manifests /var/log/pods " +
		"/var/lib/kubelet/device-plugins /var/lib/kubelet/plugins_registry /var/lib/kubelet/pod-resources " +
		"/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice /sys/fs/cgroup/cpu/kubepods/besteffort\n" +
		"touch /var/lib/berth/ledger.db /run/berth/berth.sock /var/lib/berthlet/status.json\n"
	for name, row := range map[string]struct {
		before, argument string
		want             []string
		message          string
	}{
		"purge": {argument: "purge"},
		"remove": {argument: "remove",
			before: "rm -r /etc/berth /var/log/pods /var/lib/kubelet /var/lib/berthlet /run/berth /sys/fs/cgroup/*\n",
			want:   []string{"/var/lib/berth", "/var/lib/berth/ledger.db"}},
		"files of others": {
			argument: "purge", before: "touch /etc/berth/manifests/web.yaml\nmkdir /var/lib/kubelet/pods\n",
			want: []string{
				"/etc/berth", "/etc/berth/manifests", "/etc/berth/manifests/web.yaml", "/sys/fs/cgroup/cpu/kubepods",
				"/sys/fs/cgroup/cpu/kubepods/besteffort",
				"/sys/fs/cgroup/kubepods.slice", "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice", "/var/lib/kubelet",
				"/var/lib/kubelet/pods",
			},
		},
		"another berthd runs": {
			argument: "purge", before: "exec 9>/var/lib/berth/berthd.lock\nflock 9\nrm -r /var/lib/berthlet\n",
			want: []string{"/run/berth", "/run/berth/berth.sock", "/run/berth/claims", "/var/lib/berth",
				"/var/lib/berth/berthd.lock", "/var/lib/berth/ledger.db"},
			message: "berthd: another berthd runs with /var/lib/berth",
		},
		"a container runs": {
			argument: "purge", before: "mkdir /var/lib/berthlet/runtime/root\nmount -t tmpfs tmpfs /var/lib/berthlet/runtime/root\n",
			want: []string{"/var/lib/berthlet", "/var/lib/berthlet/runtime", "/var/lib/berthlet/runtime/root",
				"/var/lib/berthlet/status.json"},
			message: "berthlet: containers still run",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The scripts lie in a directory that stays visible.
			cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c",
				hidden+row.before+"for s in "+scripts+"/*/postremove.sh; do /bin/sh $s "+row.argument+" >&2; done\necho left:\nfind /var/lib /var/log /run /etc /sys/fs/cgroup -mindepth 1 ! -path /sys/fs/cgroup/cpu ! -path '/run/mount*' | sort")
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			said, left, _ := strings.Cut(string(out), "left:\n")
			if got := strings.Fields(left); strings.Join(got, " ") != strings.Join(row.want, " ") {
				t.Errorf("left: %q, want %q", got, row.want)
			}
			if !strings.Contains(said, row.message) || row.message == "" && said != "" {
				t.Errorf("the script says %q, want %q", said, row.message)
			}
		})
	}
}
