package loglevel

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestLevels(t *testing.T) {
	t.Parallel()
	tests := []struct{ args, shown, wrong string }{
		{"", "warn error info", ""},
		{"--log-level=debug", "debug warn error info", ""},
		{"--log-level=warn", "warn error", ""},
		{"--log-level=ERROR", "error", ""},
		{"--log-level=loud", "", `invalid argument "loud" for "--log-level" flag: expected debug, info, warn or error`},
		{"--log-level=info+2", "", "expected debug, info, warn or error"},
		{"--log-level=", "", "expected debug, info, warn or error"},
	}
	for _, test := range tests {
		f := pflag.NewFlagSet("program", pflag.ContinueOnError)
		level := Add(f)
		if usage := f.FlagUsages(); !strings.Contains(usage, `(default "info")`) {
			t.Fatalf("the help is %q", usage)
		}
		var args []string
		if test.args != "" {
			args = []string{test.args}
		}
		if err := f.Parse(args); err != nil || test.wrong != "" {
			if test.wrong == "" || err == nil || !strings.Contains(err.Error(), test.wrong) {
				t.Errorf("%s: %v, want %q", test.args, err, test.wrong)
			}
			continue
		}
		var out strings.Builder
		log := level.Logger(&out)
		log.Debug("debug")
		log.Warn("warn")
		log.Error("error")
		log.Info("info")
		var shown []string
		for line := range strings.Lines(out.String()) {
			_, text, _ := strings.Cut(line, "msg=")
			shown = append(shown, strings.TrimSpace(text))
		}
		if got := strings.Join(shown, " "); got != test.shown {
			t.Errorf("%s: shown are %q, want %q", test.args, got, test.shown)
		}
	}
}
