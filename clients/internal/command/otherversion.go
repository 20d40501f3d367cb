package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/clients/berth"
)

// otherVersion is an error of a call that a berthd of another version does not know, or reads in another way.
type otherVersion struct {
	err    error
	server string
}

// Error names both versions.
func (e *otherVersion) Error() string {
	i := version.Of()
	return fmt.Sprintf("berthctl is of %s and berthd of %s, and they do not have this call in common: %v",
		versionText(i.Version, i.Commit), e.server, e.err)
}

// Unwrap returns the error of the call.
func (e *otherVersion) Unwrap() error { return e.err }

func versionText(number, commit string) string {
	return fmt.Sprintf("version %s (commit %s)", number, cmp.Or(commit, "unknown"))
}

// withVersions adds the versions of both programs to an error that follows from their difference.
func (s *Session) withVersions(ctx context.Context, err error) error {
	if !isOfOtherVersion(err) {
		return err
	}
	v, asked := s.Node().GetVersion(ctx, &nodev1.GetVersionRequest{})
	if asked != nil {
		return &otherVersion{err, "an unknown version"}
	}
	return &otherVersion{err, versionText(v.GetVersion(), v.GetCommit())}
}

// isOfOtherVersion reports whether berthd does not know the method, or one side could not decode a message. Such an error is made by
// gRPC, so it has no reason of berthd's.
func isOfOtherVersion(err error) bool {
	var failed *berth.Error
	if !errors.As(err, &failed) || failed.Reason != "" {
		return false
	}
	return failed.Code == codes.Unimplemented || failed.Code == codes.Internal && strings.Contains(failed.Message, "unmarshal")
}
