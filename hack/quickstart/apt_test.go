package quickstart

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAptRepository: machines that use the repository trust the key that signs it, and no other key of whoever signs.
func TestAptRepository(t *testing.T) {
	t.Parallel()
	needs(t, "gpg", "gpgconf", "gpgv", "dpkg-deb", "dpkg-scanpackages")
	keys, err := os.MkdirTemp("", "gpg") // the path of its agent's socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "GNUPGHOME="+keys)
	t.Cleanup(func() {
		stop := exec.Command("gpgconf", "--kill", "all")
		stop.Env = env
		if err := stop.Run(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(keys); err != nil {
			t.Error(err)
		}
	})
	command := func(program string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = env
		text, err := cmd.CombinedOutput()
		return string(text), err
	}
	must := func(program string, args ...string) string {
		t.Helper()
		text, err := command(program, args...)
		if err != nil {
			t.Fatalf("%s %q: %v: %s", program, args, err, text)
		}
		return text
	}
	dist, dir := t.TempDir(), filepath.Join(t.TempDir(), "apt")
	put(t, filepath.Join(dist, "root/DEBIAN/control"), "Package: a\nVersion: 1\nArchitecture: amd64\nMaintainer: a\nDescription: a\n")
	must("dpkg-deb", "--build", filepath.Join(dist, "root"), filepath.Join(dist, "a_1_amd64.deb"))
	apt := func(key string) (string, error) { return command("bash", "../apt.sh", dist, dir, key) }

	const owner, somebody = "releases@example.org", "not-releases@example.org"
	for _, of := range []string{owner, somebody} {
		must("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-gen-key", of, "ed25519", "sign", "never")
	}
	fingerprints := func(list string) (out []string) {
		for line := range strings.Lines(list) {
			if f := strings.Split(line, ":"); f[0] == "fpr" {
				out = append(out, f[9])
			}
		}
		return out
	}
	signer := fingerprints(must("gpg", "--batch", "--with-colons", "--list-secret-keys", "="+owner))
	if len(signer) != 1 {
		t.Fatal(signer)
	}
	trusted := func(key string) {
		t.Helper()
		if text, err := apt(key); err != nil {
			t.Errorf("%s: %v: %s", key, err, text)
			return
		}
		public := filepath.Join(dir, "berth.gpg")
		if got := fingerprints(must("gpg", "--batch", "--with-colons", "--show-keys", public)); len(got) != 1 || got[0] != signer[0] {
			t.Errorf("%s: the repository's keys are %q, and it is signed by %q", key, got, signer)
		}
		must("gpgv", "--keyring", public, filepath.Join(dir, "dists/stable/InRelease"))
	}
	for key, want := range map[string]string{owner: "2 keys", "nobody@example.org": "no key"} {
		if text, err := apt(key); err == nil || !strings.Contains(text, key+": gpg has "+want) {
			t.Errorf("%s: %v: %s", key, err, text)
		}
	}
	// A publication that was cut off can be repeated.
	cut := t.TempDir()
	for _, program := range []string{"cp", "install"} {
		put(t, filepath.Join(cut, program), "#!/bin/sh\nfor to; do :; done\necho half >\"$to\"\nexit 1\n")
	}
	path := os.Getenv("PATH")
	env = append(env, "PATH="+cut+":"+path)
	if text, err := apt(signer[0]); err == nil {
		t.Errorf("with a copy that fails: %s", text)
	}
	env = append(env, "PATH="+path)
	trusted(signer[0])
	// Of somebody else's key only the public half is here.
	other := fingerprints(must("gpg", "--batch", "--with-colons", "--list-secret-keys", "="+somebody))
	must("gpg", "--batch", "--yes", "--delete-secret-keys", other[0])
	trusted(owner)
}

// needs skips a test without a program.
func needs(t *testing.T, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs " + program)
		}
	}
}
