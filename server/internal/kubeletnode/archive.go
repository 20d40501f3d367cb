package kubeletnode

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"strings"
	"unicode"

	"github.com/klauspost/compress/zstd"

	"github.com/berthd/berth/managers/errdefs"
)

// Bounds of an archive: what is kept of it, what is read of it, and the memory of a decoder.
const (
	mostKept     = 256 << 20
	mostRead     = 16 << 30
	mostEntries  = 1 << 20
	mostName     = 4096
	decoderBytes = 256 << 20
)

// parts are the directories of a node that are kept of an archive.
var parts = []string{
	"sys/devices/system/", "proc/", "var/lib/kubelet/", "etc/kubernetes/", "var/lib/rancher/", "var/snap/microk8s/",
}

// machineFile is in every archive of a node. What is before it in its name is in the name of the others, too.
const machineFile = "sys/devices/system/cpu/online"

// Archive reads a tar archive, also compressed with gzip or zstd. Errors are of class Invalid.
func Archive(ctx context.Context, from io.Reader) (fs.FS, error) {
	in := bufio.NewReader(from)
	magic, err := in.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	var text io.Reader = in
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, errdefs.Invalidf("gzip: %w", err)
		}
		defer func() { _ = z.Close() }()
		text = z
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(in, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(decoderBytes))
		if err != nil {
			return nil, errdefs.Invalidf("zstd: %w", err)
		}
		defer z.Close()
		text = z
	}
	limited := &io.LimitedReader{R: text, N: mostRead}
	files, before, err := collect(ctx, tar.NewReader(limited))
	switch {
	case limited.N <= 0:
		return nil, errdefs.Invalidf("expected at most %d GiB in the archive", mostRead>>30)
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, errdefs.Invalidf("expected a tar archive: %w", err)
	case before == nil:
		return nil, errdefs.Invalidf("expected an archive with the files of a node: it has no %s", machineFile)
	}
	root := newTree()
	for name, file := range files {
		if below, ok := strings.CutPrefix(name, *before); ok {
			root.add(below, file)
		}
	}
	return root, nil
}

// collect keeps the files of a node. before is what their names begin with; nil if there is no machine.
func collect(ctx context.Context, archive *tar.Reader) (files map[string]*tree, before *string, err error) {
	files = map[string]*tree{}
	for entries, kept := 0, int64(0); ; entries++ {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, before, nil
		}
		if err != nil {
			return nil, nil, err
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if begin, ok := strings.CutSuffix(name, machineFile); ok && (begin == "" || strings.HasSuffix(begin, "/")) {
			before = &begin
		}
		if entries > mostEntries {
			return nil, nil, errdefs.Invalidf("expected at most %d files", mostEntries)
		}
		if !isPart(name) {
			continue
		}
		if len(name)+len(h.Linkname) > mostName {
			return nil, nil, errdefs.Invalidf("%.80s: expected names of at most %d bytes", name, mostName)
		}
		kept += int64(len(name) + len(h.Linkname))
		file := &tree{mode: 0o444, mod: h.ModTime}
		switch h.Typeflag {
		case tar.TypeReg:
			if kept += h.Size; h.Size > Most || kept > mostKept {
				return nil, nil, errdefs.Invalidf("%s: expected at most %d MiB in a file, and %d MiB in all", name, Most>>20, mostKept>>20)
			}
			if file.data, err = io.ReadAll(io.LimitReader(archive, Most)); err != nil {
				return nil, nil, err
			}
		case tar.TypeSymlink:
			file.mode, file.data = fs.ModeSymlink, []byte(h.Linkname)
		default:
			continue
		}
		if !isCommand(name) || isKubelet(file.data) {
			files[name] = file
		}
	}
}

// isCommand reports whether a file is the command line of a process.
func isCommand(name string) bool {
	dir, file := path.Split(name)
	return file == "cmdline" && path.Base(path.Dir(path.Clean(dir))) == "proc" && strings.IndexFunc(path.Base(dir), unicode.IsDigit) == 0
}

func isPart(name string) bool {
	for _, p := range parts {
		if strings.HasPrefix(name, p) || strings.Contains(name, "/"+p) {
			return true
		}
	}
	return false
}
