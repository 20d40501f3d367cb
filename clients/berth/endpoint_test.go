package berth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSocketPath(t *testing.T) {
	t.Parallel()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		texts      []string
		path, fail string
	}{
		{[]string{"", "", DefaultEndpoint}, "/run/berth/berth.sock", ""},
		{[]string{"", "/from/env.sock", DefaultEndpoint}, "/from/env.sock", ""},
		{[]string{"/given.sock", "/from/env.sock", DefaultEndpoint}, "/given.sock", ""},
		{[]string{"unix:///a/b.sock"}, "/a/b.sock", ""},
		{[]string{"unix:/a/b.sock"}, "/a/b.sock", ""},
		{[]string{"unix:b.sock"}, filepath.Join(wd, "b.sock"), ""},
		{[]string{"./b.sock"}, filepath.Join(wd, "b.sock"), ""},
		{[]string{"b.sock"}, filepath.Join(wd, "b.sock"), ""},
		{[]string{"/with:colon/b.sock"}, "/with:colon/b.sock", ""},
		{[]string{"unix://"}, "", "expected the path"},
		{[]string{"tcp://1.2.3.4:5"}, "", "unix sockets only"},
		{[]string{"dns:///host"}, "", "unix sockets only"},
		{[]string{"/" + strings.Repeat("x", 107)}, "", "has 108 bytes"},
		{[]string{"/" + strings.Repeat("x", 106)}, "/" + strings.Repeat("x", 106), ""},
	} {
		path, err := socketPath(row.texts...)
		if row.fail != "" {
			if err == nil || !strings.Contains(err.Error(), row.fail) || !strings.Contains(err.Error(), row.texts[0]) {
				t.Errorf("%q: %v, want an error that names it and says %q", row.texts, err, row.fail)
			}
			continue
		}
		if err != nil || path != row.path {
			t.Errorf("%q: %q, %v; want %q", row.texts, path, err, row.path)
		}
	}
}

// FuzzSocketPath: an endpoint gives an absolute path that the kernel takes, or an error.
func FuzzSocketPath(f *testing.F) {
	for _, seed := range []string{"", "unix:///a", "a:b", "/x", "unix:", "\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		path, err := socketPath(endpoint)
		if err == nil && (!filepath.IsAbs(path) || len(path) > maxPath) {
			t.Errorf("%q gives %q", endpoint, path)
		}
	})
}
