package house

import (
	"os"
	"os/exec"
	"testing"
)

// portable lists what must build for every system, in go list's patterns.
var portable = []string{"./managers/...", "./api/...", "./clients/hintprovider/..."}

// TestBuildsElsewhere builds what must not depend on Linux for other systems;
// go vet compiles the tests too.
func TestBuildsElsewhere(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out the builds for other systems, which take a minute from a cold cache")
	}
	for _, tt := range []struct{ goos, goarch, verb string }{
		{"darwin", "arm64", "vet"},
		{"windows", "amd64", "vet"},
		{"js", "wasm", "build"},
	} {
		// One after the other: each build uses every core already.
		cmd := exec.Command("go", append([]string{tt.verb, "-buildvcs=false"}, portable...)...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "GOOS="+tt.goos, "GOARCH="+tt.goarch, "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("GOOS=%s GOARCH=%s go %s %v: %v\n%s", tt.goos, tt.goarch, tt.verb, portable, err, out)
		}
	}
}

// TestBuildsWithoutCgo builds what has to work without a C compiler: all but the
// container runtime inside of berthlet, which then says what is missing.
func TestBuildsWithoutCgo(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short leaves out the build without cgo, which takes a minute from a cold cache")
	}
	cmd := exec.Command("go", "build", "-buildvcs=false", "-o", os.DevNull, "./server/...", "./clients/...")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("CGO_ENABLED=0 go build: %v\n%s", err, out)
	}
}
