package builtin

import (
	"log/slog"
	"time"
)

// Options of a runtime.
type Options struct {
	// Dir is the runtime's directory; an absolute path on a file system that can
	// be the upper layer of an overlay.
	Dir string
	// Images is where images are that are not named by an absolute path; may be
	// empty.
	Images string
	// LogBytes is the size at which a log is replaced by a new file; 0 for no limit.
	LogBytes int64
	// Changed is called with the uid of a pod when one of its containers may have ended. It must
	// not block.
	Changed func(uid string)
	Now     func() time.Time
	Log     *slog.Logger
}
