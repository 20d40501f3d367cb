package report_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berthd/berth/api/report"
)

// TestFinish: a failure is the error of a check that a person makes, and a line in the files of one that is made before a start.
func TestFinish(t *testing.T) {
	t.Parallel()
	var good, bad report.Result
	good.Note("the runtime is %s", "containerd 2.4.2")
	bad.Note("something else")
	bad.Fail("cpuManagerPolicy: it is static,\n  and %s", "must be none")
	bad.Fail("listen: taken")
	for name, row := range map[string]struct {
		result report.Result
		line   string
		fails  bool
	}{
		"good": {good, "passed: the runtime is containerd 2.4.2\n", false},
		"bad":  {bad, "failed: cpuManagerPolicy: it is static, and must be none; listen: taken\n", true},
	} {
		var out bytes.Buffer
		if err := row.result.Finish(&out, nil); (err != nil) != row.fails || !strings.Contains(out.String(), "note: ") {
			t.Errorf("%s: %v, %s", name, err, &out)
		}
		files := []string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")}
		if err := row.result.Finish(&out, files); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, file := range files {
			if text, err := os.ReadFile(file); err != nil || string(text) != row.line {
				t.Errorf("%s: %q, %v, want %q", name, text, err, row.line)
			}
		}
	}
	if err := good.Finish(&bytes.Buffer{}, []string{t.TempDir()}); err == nil || !strings.Contains(err.Error(), "--report") {
		t.Errorf("a report to a directory: %v", err)
	}
	bad.Fail("%s", strings.Repeat("ä", report.MaxLine))
	if line := bad.Line(); len(line) > report.MaxLine || !utf8.ValidString(line) {
		t.Errorf("a long line has %d bytes", len(line))
	}
}
