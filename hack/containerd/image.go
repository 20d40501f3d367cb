package containerd

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"runtime"
)

// entry is a file of an archive of images, as docker save writes it (OCI image
// specification, "conversion"; Docker image specification 1.2).
type entry struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// writeImage writes an archive with one layer, in which a binary is /probe, and also
// /pause. Under the names nothing is started by itself; as the pause image it waits.
func writeImage(w io.Writer, binary string, names []string) error {
	program, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	var layer bytes.Buffer
	if err := writeTar(&layer, file{"probe", program}, file{"pause", program}); err != nil {
		return err
	}
	plain, err := imageConfig(layer.Bytes())
	if err != nil {
		return err
	}
	pause, err := imageConfig(layer.Bytes(), "/pause", "wait")
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]entry{
		{Config: "plain.json", RepoTags: names, Layers: []string{"layer.tar"}},
		{Config: "pause.json", RepoTags: []string{PauseImage}, Layers: []string{"layer.tar"}},
	})
	if err != nil {
		return err
	}
	return writeTar(w, file{"layer.tar", layer.Bytes()}, file{"plain.json", plain}, file{"pause.json", pause}, file{"manifest.json", manifest})
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
