package quickstart

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackagesOfACandidate: the packages of a candidate for a release depend on each other with the version that they have.
func TestPackagesOfACandidate(t *testing.T) {
	t.Parallel()
	needs(t, "dpkg-deb")
	staged, dist := t.TempDir(), t.TempDir()
	for _, file := range []string{
		"etc/berth/berthd.yaml", "usr/bin/berthctl", "usr/bin/kubectl-berth",
		"usr/bin/berthd", "usr/bin/berth-dra", "usr/bin/berthlet", "usr/bin/berth-nri",
		"usr/lib/systemd/system/berthd.service", "usr/lib/systemd/system/berthd.socket", "usr/lib/systemd/system/berthlet.service",
		"usr/lib/systemd/system/berth-nri.service", "usr/lib/sysusers.d/berth.conf", "usr/lib/tmpfiles.d/berth.conf",
		"usr/share/bash-completion/completions/berthctl", "usr/share/berth/examples/shared.yaml",
		"usr/share/berth/monitoring/berth.rules.yaml", "usr/share/doc/berth/berth.cdx.json", "usr/share/doc/berth/docs/page-now.png",
		"usr/share/doc/berth/LICENSES.txt", "usr/share/doc/berth/proto/berth/node/v1/node.proto",
		"usr/share/man/man1/berthctl-admit.1.gz", "usr/share/man/man5/berthd.yaml.5.gz", "usr/share/man/man8/berthd.8.gz",
	} {
		put(t, filepath.Join(staged, "amd64/root", file), "")
	}
	cmd := exec.CommandContext(t.Context(), "bash", "../package.sh", "amd64")
	cmd.Env = append(os.Environ(), "STAGED="+staged, "DIST="+dist, "AS_VERSION=0.2.0-rc.1")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	needed := map[string]string{"berthd": "berth-client", "berth-kubernetes": "berthd", "berthlet": "berthd", "berth-client": ""}
	for name, of := range needed {
		files, err := filepath.Glob(filepath.Join(dist, name+"_*.deb"))
		if err != nil || len(files) != 1 {
			t.Fatal(name, files, err)
		}
		text, err := exec.CommandContext(t.Context(), "dpkg-deb", "--field", files[0], "Version", "Depends").CombinedOutput()
		want := []string{"Version: 0.2.0~rc.1-1"} // is older than 0.2.0-1
		if of != "" {
			want = append(want, of+" (= 0.2.0~rc.1-1)")
		}
		for _, part := range want {
			if err != nil || !strings.Contains(string(text), part) {
				t.Errorf("%s: %v\n%s, want %s", name, err, text, part)
			}
		}
	}
}
