package inspect

import (
	"encoding/json"

	"google.golang.org/grpc"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/history"
)

// StreamBundle implements InspectService. Only one part of a file is in memory at a time, but for
// the state.
func (s *service) StreamBundle(_ *inspectv1.StreamBundleRequest, to grpc.ServerStreamingServer[inspectv1.StreamBundleResponse]) error {
	b, err := s.Bundle(to.Context())
	if err != nil {
		return err
	}
	for _, name := range bundle.Parts() {
		if name == bundle.HistoryPart {
			err = s.streamHistory(to, b.State.Recorded)
		} else {
			var data []byte
			if data, err = b.Encode(name); err == nil && data != nil {
				err = sendFile(to, name, data)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sendFile sends data of a file in parts; an empty file, too.
func sendFile(to grpc.ServerStreamingServer[inspectv1.StreamBundleResponse], name string, data []byte) error {
	for first := true; first || len(data) > 0; first = false {
		n := min(len(data), partBytes)
		if err := to.Send(&inspectv1.StreamBundleResponse{Name: name, Data: data[:n]}); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// streamHistory sends the history in lines; what cannot be read is a line, too. last is the number
// of the last entry.
func (s *service) streamHistory(to grpc.ServerStreamingServer[inspectv1.StreamBundleResponse], last uint64) error {
	var (
		lines  []byte
		failed error
	)
	each := func(e *history.Entry, damage error) bool {
		last = max(e.Number, 1) - 1
		line, err := bundle.LineOf(e, damage)
		if err == nil {
			var text []byte
			text, err = json.Marshal(line)
			lines = append(append(lines, text...), '\n')
		}
		if err == nil && len(lines) > partBytes {
			err = sendFile(to, bundle.HistoryPart, lines)
			lines = nil // a message that is being sent has the old ones
		}
		failed = err
		return err == nil
	}
	err := s.Ledger.Entries(to.Context(), 0, each)
	if errdefs.ClassOf(err) == errdefs.Corrupt {
		each(&history.Entry{Number: last}, err)
		err = nil
	}
	if err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	return sendFile(to, bundle.HistoryPart, lines)
}
