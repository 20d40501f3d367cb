package app

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// bootID returns the kernel's id of this boot, random(4), from a /proc.
func bootID(proc fs.FS) (string, error) {
	const file = "sys/kernel/random/boot_id"
	text, err := fs.ReadFile(proc, file)
	if err != nil {
		return "", errdefs.Unavailablef("read the id of this boot: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if id == "" {
		return "", fmt.Errorf("read the id of this boot: /proc/%s is empty", file)
	}
	return id, nil
}

// bootID returns the id of this boot, or the one that a test wants.
func (a *App) bootID(proc fs.FS) (string, error) {
	if a.Stage != nil && a.Stage.BootID != "" {
		return a.Stage.BootID, nil
	}
	return bootID(proc)
}
