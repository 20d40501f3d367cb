package containerd

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
)

// Image is an image of static binaries.
type Image struct {
	Names      []string
	Entrypoint []string
	// Files are the binaries, by their paths in the image.
	Files map[string]string
}

// entry is a file of an archive of images, as docker save writes it (OCI image
// specification, "conversion"; Docker image specification 1.2).
type entry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// writeImages writes an archive of images with one layer each.
func writeImages(w io.Writer, images []Image) error {
	var files []file
	var entries []entry
	for i, image := range images {
		var binaries []file
		for _, path := range slices.Sorted(maps.Keys(image.Files)) {
			program, err := os.ReadFile(image.Files[path])
			if err != nil {
				return err
			}
			binaries = append(binaries, file{path, program})
		}
		var layer bytes.Buffer
		if err := writeTar(&layer, binaries...); err != nil {
			return err
		}
		config, err := imageConfig(layer.Bytes(), image.Entrypoint...)
		if err != nil {
			return err
		}
		e := entry{Config: fmt.Sprintf("config%d.json", i), RepoTags: image.Names, Layers: []string{fmt.Sprintf("layer%d.tar", i)}}
		files = append(files, file{e.Layers[0], layer.Bytes()}, file{e.Config, config})
		entries = append(entries, e)
	}
	manifest, err := json.Marshal(entries)
	if err != nil {
		return err
	}
	return writeTar(w, append(files, file{"manifest.json", manifest})...)
}

func imageConfig(layer []byte, entrypoint ...string) ([]byte, error) {
	sum := sha256.Sum256(layer)
	return json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": entrypoint},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
}

type file struct {
	name    string
	content []byte
}

func writeTar(w io.Writer, files ...file) error {
	t := tar.NewWriter(w)
	for _, f := range files {
		if err := t.WriteHeader(&tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.content)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		if _, err := t.Write(f.content); err != nil {
			return err
		}
	}
	return t.Close()
}
