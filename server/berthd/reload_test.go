package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
)

// configured is a node whose daemons read a file; write changes it.
func configured(t *testing.T, machine string) (n *node, write func(text string)) {
	t.Helper()
	n = newNode(t, "--machine", machine, "--cgroup-tree", "memory")
	n.kernel = false
	n.config = filepath.Join(n.root, "berthd.yaml")
	return n, func(text string) {
		t.Helper()
		text = "apiVersion: config.berthd.github.io/v1alpha1\nkind: BerthConfiguration\ncpu: {policy: static}\n" + text
		if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// reload reads the configuration again, and returns what differs: "field from > to", with the reason if it is not in force.
func (d *daemon) reload(dryRun bool) (changes []string) {
	d.t.Helper()
	r, err := nodev1.NewNodeServiceClient(d.conn).Reload(d.ctx(), &nodev1.ReloadRequest{DryRun: dryRun})
	if err != nil {
		d.t.Fatal(err)
	}
	for _, c := range r.GetChanges() {
		text := c.GetField() + " " + c.GetOldValue() + " > " + c.GetNewValue()
		if c.GetApplied() != (c.GetReason() == "") {
			d.t.Errorf("%s: applied is %t, reason %q", text, c.GetApplied(), c.GetReason())
		}
		if !c.GetApplied() {
			text += ": " + c.GetReason()
		}
		changes = append(changes, text)
	}
	return changes
}

func (d *daemon) reloads(want ...string) {
	d.t.Helper()
	if got := d.reload(false); strings.Join(got, "\n") != strings.Join(want, "\n") {
		d.t.Errorf("changes:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestReload: what can change is in force afterwards, and the answer lists what is not and why.
func TestReload(t *testing.T) {
	t.Parallel()
	n, write := configured(t, "1s1n8c1t")
	write("reserved: {cpus: \"0\"}\n")
	d := n.start()
	d.reloads()

	write("reserved: {cpus: \"0\"}\nlog: {level: debug, format: json}\nlimits: {call: 1m, messageBytes: 1000000}\nstrictState: true\n")
	if got := d.reload(true); len(got) != 5 {
		t.Errorf("a dry run tells %q", got)
	}
	want := []string{
		`limits.call "2m0s" > "1m0s"`,
		`limits.messageBytes 4194304 > 1000000: needs a restart: buffers are allocated for it at the start`,
		`log.format "text" > "json": needs a restart: the log is opened at the start`,
		`log.level "info" > "debug"`,
		`strictState  > true: needs a restart: berthd looks for damage only at the start`,
	}
	d.reloads(want...)
	// What is in force is no difference any more.
	d.reloads(want[1], want[2], want[4])
	d.says("level=DEBUG")

	// Free CPUs are reserved. With one that a container has, the rest changes.
	d.admitted(guaranteed("a", 1, 0))
	if got := d.pods()["a"].GetContainers()[0].GetCpus().GetList(); got != "1" {
		t.Fatalf("the container has CPU %s", got)
	}
	write("reserved: {cpus: \"0,7\"}\n")
	d.reload(false)
	write("reserved: {cpus: \"0-1,7\"}\ntopology: {policy: restricted}\n")
	d.reloads(
		`reserved.cpus "0,7" > "0-1,7": container main of pod default/a (a) has CPU 1 for itself: remove the pod and reload, or reserve other CPUs`,
		`topology.policy "none" > "restricted"`,
	)
	if v := d.admit(guaranteed("b", 6, 0)); v.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
		t.Errorf("6 CPUs are given out of 5: %s", v)
	}
	d.admitted(guaranteed("b", 5, 0))
	d.remove("a")
	d.reloads(`reserved.cpus "0,7" > "0-1,7"`)

	// The next start finds the same configuration.
	revision := d.revision()
	d.stop()
	d = n.start()
	if got := d.revision(); got != revision {
		t.Errorf("revision %d after a restart, %d before", got, revision)
	}
	d.reloads()
}

// TestReloadRefuses: a file that is not valid changes nothing.
func TestReloadRefuses(t *testing.T) {
	t.Parallel()
	n, write := configured(t, "1s1n4c1t")
	write("reserved: {cpus: \"0\"}\n")
	d := n.start()
	for text, want := range map[string]string{
		"reserved: {cpus: \"9\"}\nlog: {level: debug}\n":      "9",
		"reserved: {cpus: \"0\"}\nlog: {level: loud}\n":       "log.level",
		"reserved: {cpus: \"0\"}\nunknown: 1\n":               "unknown",
		"reserved: {cpus: \"0\"}\nlimits: {userCalls: -1}\n":  "limits.userCalls",
		"reserved: {cpus: \"0\"}\naccess: [{user: nobody-x}]": "nobody-x",
	} {
		write(text)
		_, err := nodev1.NewNodeServiceClient(d.conn).Reload(d.ctx(), &nodev1.ReloadRequest{})
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	write("reserved: {cpus: \"0\"}\n")
	d.reloads()
}

// TestReloadBySignal: SIGHUP does the same, and systemd hears of it.
func TestReloadBySignal(t *testing.T) {
	t.Parallel()
	n, write := configured(t, "1s1n4c1t")
	m := managed(t, n, 0)
	write("reserved: {cpus: \"0\"}\n")
	d := n.start()
	m.until(n, "READY=1")
	write("reserved: {cpus: \"0\"}\nlimits: {userCalls: 7}\nhttp: localhost:0\n")
	if err := d.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	m.until(n, "RELOADING=1")
	m.until(n, "MONOTONIC_USEC=")
	m.until(n, "READY=1")
	d.says("field=limits.userCalls from=256 to=7")
	d.says(`field=http in_force="" in_file="\"localhost:0\"" reason="needs a restart: the socket or port is opened at the start"`)
	write("nonsense")
	if err := d.Cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	d.says("the configuration was not changed")
	d.admitted(burstable("x"))
}

// TestReloadAccess: a user gets roles and loses them, and can reach the socket in between.
func TestReloadAccess(t *testing.T) {
	t.Parallel()
	n, write := configured(t, "1s1n4c1t")
	write("reserved: {cpus: \"0\"}\n")
	d := n.start()
	mode := func() os.FileMode {
		info, err := os.Stat(n.socket())
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if got := mode(); got != 0o660 {
		t.Errorf("mode %o", got)
	}
	write("reserved: {cpus: \"0\"}\naccess: [{uid: 12345, roles: [read]}]\n")
	d.reloads(`access  > [{"uid":12345,"roles":["read"]}]`)
	if got := mode(); got != 0o666 {
		t.Errorf("mode %o with a grant", got)
	}
	write("reserved: {cpus: \"0\"}\n")
	d.reloads(`access [{"uid":12345,"roles":["read"]}] > `)
	if got := mode(); got != 0o660 {
		t.Errorf("mode %o without", got)
	}
}
