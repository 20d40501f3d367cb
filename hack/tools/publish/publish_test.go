package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// release makes a directory with files and their checksums.
func release(t *testing.T, files map[string]string) (dist string) {
	t.Helper()
	dist = t.TempDir()
	sums := ""
	for name, text := range files {
		file := filepath.Join(dist, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		sum, err := sumOf(file)
		if err != nil {
			t.Fatal(err)
		}
		sums += sum + "  " + name + "\n"
	}
	if err := os.WriteFile(filepath.Join(dist, sumsFile), []byte(sums), 0o600); err != nil {
		t.Fatal(err)
	}
	return dist
}

// keys makes a pair of keys.
func keys(t *testing.T) (private, public string) {
	t.Helper()
	dir := t.TempDir()
	if err := run(t.Context(), []string{"key", "-to", dir}, io.Discard); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "minisign.key"), filepath.Join(dir, "minisign.pub")
}

// TestSignature: a signed release is accepted as it is, and with no change at all.
func TestSignature(t *testing.T) {
	t.Parallel()
	private, public := keys(t)
	_, other := keys(t)
	write := func(name, text string) func(string) error {
		return func(dist string) error { return os.WriteFile(filepath.Join(dist, name), []byte(text), 0o600) }
	}
	for name, row := range map[string]struct {
		change func(dist string) error
		public string
		want   string // empty if it is accepted
	}{
		"as it is":          {func(string) error { return nil }, public, ""},
		"another key":       {func(string) error { return nil }, other, "the signature is not that of SHA256SUMS by this key"},
		"another file":      {write("a.deb", "b"), public, "a.deb: the checksum is not that of SHA256SUMS"},
		"a file more":       {write("c.deb", "c"), public, "SHA256SUMS has no c.deb"},
		"a file is missing": {func(dist string) error { return os.Remove(filepath.Join(dist, "a.deb")) }, public, "a.deb is missing"},
		"no checksums":      {write(sumsFile, ""), public, "SHA256SUMS has no file"},
		"a path outside":    {write(sumsFile, "00  ../a.deb\n"), public, "expected a checksum and a name"},
		"no signature": {func(dist string) error {
			return os.Remove(filepath.Join(dist, signatureFile))
		}, public, "SHA256SUMS.minisig"},
		"no key": {func(string) error { return nil }, public + "x", "-public "},
		"checksums made anew": {func(dist string) error {
			if err := write("a.deb", "b")(dist); err != nil {
				return err
			}
			sum, err := sumOf(filepath.Join(dist, "a.deb"))
			if err != nil {
				return err
			}
			return write(sumsFile, sum+"  a.deb\n")(dist)
		}, public, "the signature is not that of SHA256SUMS by this key"},
	} {
		dist := release(t, map[string]string{"a.deb": "a"})
		if err := run(t.Context(), []string{"sign", "-key", private, dist}, io.Discard); err != nil {
			t.Fatal(err)
		}
		if err := row.change(dist); err != nil {
			t.Fatal(err)
		}
		err := run(t.Context(), []string{"verify", "-public", row.public, dist}, io.Discard)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// archive writes an image layout as hack/image.sh does.
func archive(t *testing.T, file string, add func(layout.Path) error) {
	t.Helper()
	dir := t.TempDir()
	to, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = add(to)
	}
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestImages: what is pushed is pulled by the digest that is printed, for each architecture.
func TestImages(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	to := strings.TrimPrefix(server.URL, "http://") + "/berth"
	var images v1.ImageIndex = empty.Index
	for _, arch := range []string{"amd64", "arm64"} {
		image, err := random.Image(1024, 1)
		if err != nil {
			t.Fatal(err)
		}
		images = mutate.AppendManifests(images, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	one, err := random.Image(1024, 1)
	if err != nil {
		t.Fatal(err)
	}
	dist := release(t, nil)
	archive(t, filepath.Join(dist, "berth-nri-0.1.0-rc.1.oci.tar"), func(to layout.Path) error { return to.AppendIndex(images) })
	archive(t, filepath.Join(dist, "berthd-0.1.0.oci.tar"), func(to layout.Path) error { return to.AppendImage(one) })
	var out strings.Builder
	if err := run(t.Context(), []string{"images", "-to", to, dist}, &out); err == nil {
		t.Error("pushed images that have no checksum")
	}
	var sums strings.Builder
	for _, file := range []string{"berth-nri-0.1.0-rc.1.oci.tar", "berthd-0.1.0.oci.tar"} {
		sum, err := sumOf(filepath.Join(dist, file))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&sums, "%s  %s\n", sum, file)
	}
	if err := os.WriteFile(filepath.Join(dist, sumsFile), []byte(sums.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"images", "-to", to, dist}, &out); err != nil {
		t.Fatal(err)
	}
	want, err := images.Digest()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(out.String())
	if len(lines) != 2 || lines[0] != to+"/berth-nri@"+want.String() {
		t.Fatalf("printed %q, want the digest %s", lines, want)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		ref, err := name.NewDigest(lines[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := remote.Image(ref, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch})); err != nil {
			t.Errorf("%s: %v", arch, err)
		}
	}
	if tag, err := name.NewTag(to + "/berthd:0.1.0"); err != nil {
		t.Error(err)
	} else if _, err := remote.Image(tag); err != nil {
		t.Error(err)
	}
}

// oneImage makes a release with one image.
func oneImage(t *testing.T) (dist string) {
	t.Helper()
	image, err := random.Image(1024, 1)
	if err != nil {
		t.Fatal(err)
	}
	const name = "berthd-0.1.0.oci.tar"
	dist = release(t, nil)
	archive(t, filepath.Join(dist, name), func(to layout.Path) error { return to.AppendImage(image) })
	sum, err := sumOf(filepath.Join(dist, name))
	if err == nil {
		err = os.WriteFile(filepath.Join(dist, sumsFile), []byte(sum+"  "+name+"\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dist
}

// TestImagesOnce: a version that is published never gets another content, and a push that was interrupted can be repeated.
func TestImagesOnce(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	to := strings.TrimPrefix(server.URL, "http://") + "/berth"
	first, other := oneImage(t), oneImage(t)
	var before, after strings.Builder
	if err := run(t.Context(), []string{"images", "-to", to, first}, &before); err != nil {
		t.Fatal(err)
	}
	err := run(t.Context(), []string{"images", "-to", to, other}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "/berth/berthd:0.1.0 is published already, with other content: raise the version") {
		t.Errorf("another image of the same version: %v", err)
	}
	if err := run(t.Context(), []string{"images", "-to", to, first}, &after); err != nil || before.String() != after.String() {
		t.Errorf("the same image again: %v, %s, and before %s", err, &after, &before)
	}
}

// TestImagesWithLogin: a registry gets the name and the password that `docker login` has stored. It is not parallel to other tests, because
// they are looked for in a directory of the environment.
func TestImagesWithLogin(t *testing.T) { //nolint:paralleltest // see above
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "owner" || password != "of it" {
			w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	host, dir, dist := strings.TrimPrefix(server.URL, "http://"), t.TempDir(), oneImage(t)
	t.Setenv("DOCKER_CONFIG", dir)
	if err := run(t.Context(), []string{"images", "-to", host + "/berth", dist}, io.Discard); err == nil {
		t.Error("pushed without a password")
	}
	stored := fmt.Sprintf(`{"auths": {%q: {"username": "owner", "password": "of it"}}}`, host)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(stored), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), []string{"images", "-to", host + "/berth", dist}, io.Discard); err != nil {
		t.Error(err)
	}
}

// TestModule: a module outside gets this one from the directory, with nothing else.
func TestModule(t *testing.T) {
	t.Parallel()
	source, proxy, outside := t.TempDir(), t.TempDir(), t.TempDir()
	for file, text := range map[string]string{
		filepath.Join(source, "go.mod"):   "module example.org/of\n\ngo 1.26\n",
		filepath.Join(source, "of.go"):    "package of\n\nconst Text = \"here\"\n",
		filepath.Join(outside, "go.mod"):  "module example.org/outside\n\ngo 1.26\n",
		filepath.Join(outside, "main.go"): "package main\n\nimport \"example.org/of\"\n\nfunc main() { print(of.Text) }\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := func(dir, name string, args ...string) string {
		t.Helper()
		c := exec.Command(name, args...)
		c.Dir = dir
		c.Env = append(os.Environ(), "GOPROXY=file://"+proxy, "GONOSUMDB=*", "GOFLAGS=-mod=mod -modcacherw",
			"GOMODCACHE="+filepath.Join(proxy, "cache"),
			"GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org",
			"GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
		text, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v: %s", name, args, err, text)
		}
		return string(text)
	}
	command(source, "git", "init", "-q")
	command(source, "git", "add", ".")
	command(source, "git", "commit", "-q", "-m", "first")
	if err := os.WriteFile(filepath.Join(source, "broken.go"), []byte("not committed"), 0o600); err != nil {
		t.Fatal(err)
	}
	// What no module can have is refused, and the same version can be published without it.
	bad := filepath.Join(source, "aux.go")
	if err := os.WriteFile(bad, []byte("package of\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command(source, "git", "add", "aux.go")
	command(source, "git", "commit", "-q", "-m", "second")
	if err := writeModule(t.Context(), source, proxy, "HEAD", "v0.1.0"); err == nil || !strings.Contains(err.Error(), "aux.go") {
		t.Errorf("a file with a name of Windows: %v", err)
	}
	if err := writeModule(t.Context(), source, proxy, "HEAD~1", "v0.1.0"); err != nil {
		t.Fatal(err)
	}
	if list, err := os.ReadFile(filepath.Join(proxy, "example.org/of/@v/list")); err != nil || string(list) != "v0.1.0\n" {
		t.Errorf("the list of versions is %q, %v", list, err)
	}
	command(outside, "go", "get", "example.org/of@latest")
	if out := command(outside, "go", "run", "."); out != "here" {
		t.Errorf("it prints %q", out)
	}
	err := writeModule(t.Context(), source, proxy, "HEAD", "v0.1.0")
	if err == nil || !strings.Contains(err.Error(), "is published already") {
		t.Errorf("the same version again: %v", err)
	}
}

// TestUsage: what is missing or wrong is named.
func TestUsage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                                       "expected sign, verify",
		"push":                                   "push: expected sign, verify",
		"sign dist":                              "sign: -key is missing",
		"sign -key k":                            "sign: expected the directory of the release",
		"module -to d -version 0.1.0":            "-version 0.1.0: expected a version as in v0.1.0",
		"module -to d -version v0.1.0 x":         `module: unexpected "x"`,
		"images -to registry.example/berth none": "none/SHA256SUMS",
	} {
		if err := run(t.Context(), strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
