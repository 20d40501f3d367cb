package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
)

// TestLedgerFileRemoved: the file, or the whole directory, is removed while berthd
// runs. Whatever is acknowledged after that a restart knows, and what came before too.
func TestLedgerFileRemoved(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(state string) error{
		"file":      func(state string) error { return os.Remove(filepath.Join(state, "ledger.db")) },
		"directory": os.RemoveAll,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			d := n.start()
			d.admitted(burstable("a"))
			if err := remove(filepath.Join(n.root, "state")); err != nil {
				t.Fatal(err)
			}
			d.admitted(burstable("b"))
			d.says("was written again")
			d.check()
			d.kill()
			d = n.start()
			if pods := d.pods(); pods["a"] == nil || pods["b"] == nil || len(pods) != 2 {
				t.Errorf("after a restart: %v", pods)
			}
			d.check()
			if err := remove(filepath.Join(n.root, "state")); err != nil {
				t.Fatal(err)
			}
			d.stop() // without a commit
			d = n.start()
			if pods := d.pods(); len(pods) != 2 {
				t.Errorf("after another restart: %v", pods)
			}
		})
	}
}

// TestDamagedTrace: one damaged bit of a pod's explanation costs only that explanation.
func TestDamagedTrace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	d.admitted(burstable("a"))
	d.admitted(burstable("b"))
	d.kill()
	path := filepath.Join(n.root, "state", "ledger.db")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	was := []byte(`"pod":"a","namespace"`) // a trace's
	if !bytes.Contains(data, was) {
		t.Fatal("no trace is in the file")
	}
	if err := os.WriteFile(path, bytes.ReplaceAll(data, was, []byte(`"pod":"c","namespace"`)), 0o600); err != nil {
		t.Fatal(err)
	}
	d = n.start()
	if pods := d.pods(); pods["a"] == nil || pods["b"] == nil {
		t.Errorf("pods %v", pods)
	}
	check, err := d.inspect.Check(n.ctx(), &inspectv1.CheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if report := strings.Join(check.GetStartReport(), "\n"); len(check.GetFindings()) > 0 ||
		!strings.Contains(report, "2 pods are whole") ||
		!strings.Contains(report, "damaged: traces/") || strings.Contains(report, "waiting for the agent's SyncPods") {
		t.Errorf("report:\n%s\nfindings %v", report, check.GetFindings())
	}
}

// TestDamagedFacts: damaged facts about the last commit are written again by the start, and neither the
// file nor a pod is given up.
func TestDamagedFacts(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := n.start()
	d.admitted(burstable("a"))
	d.kill()
	path := filepath.Join(n.root, "state", "ledger.db")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"boot-id", "config", "machine", "reservation", "topology"} {
		was := []byte(key + `{"crc":"`)
		if !bytes.Contains(data, was) {
			t.Fatalf("no %s is in the file", key)
		}
		data = bytes.ReplaceAll(data, was, []byte(key+`{"crc":'`))
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, lines := range []int{5, 0} {
		d = n.start()
		if pods := d.pods(); pods["a"] == nil {
			t.Errorf("pods %v", pods)
		}
		report, err := d.inspect.GetStartReport(n.ctx(), &inspectv1.GetStartReportRequest{})
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(report.GetLines(), "\n")
		if strings.Count(text, "damaged in the ledger, and written again: meta/") != lines || strings.Contains(text, "set aside") {
			t.Errorf("report, want %d values:\n%s", lines, text)
		}
		d.check()
		d.stop() // without a call
	}
}
