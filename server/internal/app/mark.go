package app

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/server/internal/host/disk"
)

// markReady records in the state directory that berthd has been ready on this node once. berth-nri reads it: before, nobody relies
// on berthd, so pods start without it. Without the mark nothing of berthd's own changes.
func markReady(ctx context.Context, stateDir string, log *slog.Logger) {
	path := filepath.Join(stateDir, config.ReadyMark)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return
	}
	if err == nil {
		_, err = f.WriteString("berthd has been ready on this node. While this file is there, berth-nri starts no container that berthd cannot place.\n")
		err = errors.Join(err, f.Sync(), f.Close(), disk.Sync(stateDir))
	}
	if err != nil {
		log.WarnContext(ctx, "recording that berthd has been ready failed", "file", path, "error", err)
	}
}
