package main

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"aead.dev/minisign"
)

// The files of the checksums, and of their signature.
const (
	sumsFile      = "SHA256SUMS"
	signatureFile = sumsFile + ".minisig"
)

// makeKeys makes keys that no file has yet.
func makeKeys(dir string) error {
	public, private, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("make keys: %w", err)
	}
	text, err := private.MarshalText()
	if err != nil {
		return fmt.Errorf("make keys: %w", err)
	}
	publicText, err := public.MarshalText()
	if err != nil {
		return fmt.Errorf("make keys: %w", err)
	}
	for name, of := range map[string]struct {
		text []byte
		mode fs.FileMode
	}{"minisign.key": {text, 0o600}, "minisign.pub": {publicText, 0o644}} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, of.mode)
		if err != nil {
			return fmt.Errorf("make keys: %w", err)
		}
		_, err = f.Write(append(of.text, '\n'))
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("make keys: %w", err)
		}
	}
	return nil
}

// sign signs the checksums of a release, whose files must be as they say.
func sign(dist, key string) error {
	private, err := readKey(key)
	if err != nil {
		return fmt.Errorf("-key %s: %w", key, err)
	}
	text, err := checkSums(dist)
	if err != nil {
		return err
	}
	signature := minisign.SignWithComments(private, text, sumsFile+" of a release", "signature from a minisign secret key")
	return os.WriteFile(filepath.Join(dist, signatureFile), signature, 0o644)
}

// readKey reads a private key without a password.
func readKey(file string) (key minisign.PrivateKey, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return key, err
	}
	if minisign.IsEncrypted(text) {
		return key, errors.New("the key has a password: sign SHA256SUMS with minisign itself, or keep the key without one where only you can read it")
	}
	return key, key.UnmarshalText(bytes.TrimSpace(text))
}

// verify checks a release as somebody who has the public key.
func verify(dist, public string) error {
	key, err := minisign.PublicKeyFromFile(public)
	if err != nil {
		return fmt.Errorf("-public %s: %w", public, err)
	}
	signature, err := os.ReadFile(filepath.Join(dist, signatureFile))
	if err != nil {
		return err
	}
	text, err := checkSums(dist)
	if err != nil {
		return err
	}
	if !minisign.Verify(key, text, signature) {
		return fmt.Errorf("%s: the signature is not that of %s by this key", signatureFile, sumsFile)
	}
	return nil
}

// checkSums returns the text of SHA256SUMS, after each file of the release was compared with it.
func checkSums(dist string) (text []byte, err error) {
	text, err = os.ReadFile(filepath.Join(dist, sumsFile))
	if err != nil {
		return nil, err
	}
	want := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok || !filepath.IsLocal(name) {
			return nil, fmt.Errorf("%s: %q: expected a checksum and a name", sumsFile, lines.Text())
		}
		want[name] = sum
	}
	if len(want) == 0 {
		return nil, fmt.Errorf("%s has no file", sumsFile)
	}
	err = filepath.WalkDir(dist, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		name, err := filepath.Rel(dist, path)
		if err != nil || name == sumsFile || name == signatureFile {
			return err
		}
		sum, err := sumOf(path)
		switch {
		case err != nil:
			return err
		case want[name] == "":
			return fmt.Errorf("%s has no %s", sumsFile, name)
		case want[name] != sum:
			return fmt.Errorf("%s: the checksum is not that of %s", name, sumsFile)
		}
		delete(want, name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(want) > 0 {
		return nil, fmt.Errorf("%s is missing", slices.Sorted(maps.Keys(want))[0])
	}
	return text, nil
}

// sumOf is the SHA-256 of a file.
func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
