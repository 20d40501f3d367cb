package history

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/journal"
)

// Entries are stored in blocks. A commit that adds an entry writes the last block again, and no
// other page: the last block is in a bucket of its own, so nothing leads to it but the root. A
// tree of single entries costs a commit its last leaf, the branches above, and new space at the
// end of the file.
//
// Of a commit that admits a small pod, the history is 15 of 48 KB: 6 KB are the last block, the
// rest is its share of the moves of full blocks, each of which writes a leaf with up to four blocks
// again.
const (
	// blockEntries and blockBytes limit a block: three pages of 4 KiB. A larger entry is alone.
	blockEntries = 32
	blockBytes   = 11 << 10
)

// block is a list of entries without gaps.
type block struct {
	first uint64 // number of the first entry
	count int
	// text is the JSON of the list without its last bracket.
	text []byte
}

// next is the number after the last entry.
func (b block) next() uint64 { return b.first + uint64(b.count) }

// takes returns whether an entry of a number and size belongs to the block.
func (b block) takes(number uint64, size int, limits Limits) bool {
	return b.count > 0 && number == b.next() &&
		b.count < min(blockEntries, limits.Entries/blockEntries) && len(b.text)+size < min(blockBytes, limits.Bytes/blockEntries)
}

// with returns the block with one more entry; a new block, if it has none. It writes behind the
// text of the block, where only the commit path writes, and which no reader has.
func (b block) with(number uint64, text []byte) block {
	separator := byte(',')
	if b.count == 0 {
		b.first, separator = number, '['
		b.text = make([]byte, 0, max(blockBytes, 1+len(text)))
	}
	b.text = append(append(b.text, separator), text...)
	b.count++
	return b
}

// seal returns the block as an entry of a bucket.
func (b block) seal(bucket string) journal.Entry {
	return journal.SealText(bucket, journal.NumberKey(b.first), b.text, []byte("]"))
}

// readBlock reads a stored block. Without an error about the key, first is known.
func readBlock(stored journal.Entry) (first uint64, all []*Entry, err error) {
	if first, err = journal.ParseNumber(stored.Key); err != nil {
		return 0, nil, err
	}
	if err := journal.Decode(stored, &all); err != nil {
		return first, nil, errdefs.Corruptf("the entries of the history from %d on are damaged: %w", first, err)
	}
	for i, e := range all {
		if e == nil {
			return first, nil, errdefs.Corruptf("the entries of the history from %d on are damaged: one is null", first)
		}
		e.complete(first + uint64(i))
	}
	return first, all, nil
}

// reopen returns the block of a stored one that can be read.
func reopen(stored journal.Entry, first uint64, count int) block {
	text, err := journal.Unseal(stored)
	if err != nil || count == 0 {
		return block{}
	}
	return block{first: first, count: count, text: slices.Clip(text[:len(text)-1])}
}

// tooLarge is the message of a change that was too large to be recorded.
const tooLarge = "the change is too large for the history: what was there before it is not recorded"

// Text returns an entry as JSON. One that is too large has no earlier values.
func Text(e *Entry) ([]byte, error) {
	text, err := json.Marshal(e)
	if err != nil || len(text) <= largestEntry || e.Before == nil {
		return text, err
	}
	short := *e
	short.Before, short.Begins, short.Message = nil, true, cmp.Or(e.Message, tooLarge)
	return json.Marshal(&short)
}

// parts returns the JSON of a commit's entry. A change that is too large for an entry has several,
// of which the last one is also that of the call. If it has more than most bytes, or if one pod is
// too large, its earlier values are not recorded.
func (e *Entry) parts(most int) (all [][]byte, err error) {
	text, err := json.Marshal(e)
	if err != nil || len(text) <= largestEntry || e.Before == nil {
		return [][]byte{text}, err
	}
	last := *e
	last.Part, last.Before = true, nil
	if text, err = json.Marshal(&last); err != nil {
		return nil, err
	}
	room := largestEntry - len(text) - 1<<10 // for names of fields
	part, size := &Before{}, 0
	total := 0
	for _, one := range e.Before.each() {
		if text, err = json.Marshal(one); err != nil {
			return nil, err
		}
		if total += len(text); len(text) > room || total > min(most, mostParts) {
			text, err = Text(e)
			return [][]byte{text}, err
		}
		added := len(text)
		if size += added; size > room {
			other := &Entry{
				Time: e.Time, Clock: e.Clock, Revision: e.Revision, Call: e.Call, Caller: e.Caller, Pod: e.Pod, Namespace: e.Namespace,
				Name:      e.Name,
				Container: e.Container, Part: true, Before: part, Begins: last.Begins,
			}
			if text, err = json.Marshal(other); err != nil {
				return nil, err
			}
			all, last.Begins = append(all, text), false
			part, size = &Before{}, added
		}
		part.Pods, part.Unknown, part.Bindings = append(part.Pods, one.Pods...), append(part.Unknown, one.Unknown...),
			append(part.Bindings, one.Bindings...)
	}
	part.Rules = e.Before.Rules
	last.Before = part
	text, err = json.Marshal(&last)
	return append(all, text), err
}

// each returns the earlier values without the rules, one by one, in an order in which the change
// can be made again. Those of a uid are together, because a pod must not be admitted and unknown.
func (b *Before) each() (all []Before) {
	unknown := map[string][]Unknown{}
	for _, u := range b.Unknown {
		unknown[u.UID] = append(unknown[u.UID], u)
	}
	for _, p := range b.Pods {
		all = append(all, Before{Pods: []Pod{p}, Unknown: unknown[p.UID]})
		delete(unknown, p.UID)
	}
	for _, u := range b.Unknown {
		if one, left := unknown[u.UID]; left {
			all = append(all, Before{Unknown: one})
		}
	}
	for _, c := range b.Bindings {
		all = append(all, Before{Bindings: []Binding{c}})
	}
	return all
}

// ReadText reads the JSON of an entry with a number.
func ReadText(number uint64, text []byte) (*Entry, error) {
	e := &Entry{}
	if err := json.Unmarshal(text, e); err != nil {
		return &Entry{Number: number}, errdefs.Corruptf("entry %d of the history is damaged: %w", number, err)
	}
	e.complete(number)
	return e, nil
}

// complete sets what the JSON of an entry leaves out, because it has it elsewhere.
func (e *Entry) complete(number uint64) {
	e.Number = number
	if e.Before == nil {
		return
	}
	for _, p := range e.Before.Pods {
		if p.Record != nil {
			p.Record.Claims = p.Claims
		}
	}
	for _, u := range e.Before.Unknown {
		if u.Pod != nil {
			u.Pod.UID = u.UID
		}
	}
	for _, b := range e.Before.Bindings {
		if b.Binding != nil {
			b.Binding.ID = b.ID
		}
	}
}
