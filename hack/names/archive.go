package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
)

// archive replaces names in the files of a tar archive that is compressed with gzip, and changes nothing else of them.
// It returns nothing if there is no name.
func archive(data []byte, replace func(text string) (string, error)) ([]byte, error) {
	unpacked, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	packed, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	from, to, changed := tar.NewReader(unpacked), tar.NewWriter(packed), false
	for {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		old, err := io.ReadAll(from)
		if err != nil {
			return nil, err
		}
		text, err := replace(string(old))
		if err != nil {
			return nil, err
		}
		changed = changed || text != string(old)
		header.Size = int64(len(text))
		if err := to.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(to, text); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(to.Close(), packed.Close()); err != nil || !changed {
		return nil, err
	}
	return out.Bytes(), nil
}
