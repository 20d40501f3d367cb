package journal

import "fmt"

// metaFact is an entry of meta that a start does not need: it compares the last commit with the
// present, and each start computes it again from the machine, the configuration and the boot. So a
// damaged value does not damage the ledger. It is reported, and the next commit writes it again.
type metaFact struct {
	key string
	// of is what the entry has of the last commit.
	of string
	// without is what a start cannot know without the entry.
	without string
	// rule is whether states before the last commit cannot be computed without the entry.
	rule bool
}

// metaFacts are in the order of the schema's comment. An absent machine or configuration is damage of
// the ledger nevertheless: other entries of meta, which may be absent, may have gone with it.
var metaFacts = []metaFact{
	{metaBootID, "the boot", "reserved CPUs that went offline in this boot are not kept", false},
	{metaMachine, "the fingerprint of the machine", "it is not known whether the machine has changed since", true},
	{metaTopology, "the machine", "states before it cannot be computed", true},
	{metaConfig, "the digest of the configuration",
		"it is not known whether the configuration has changed since, and reserved CPUs that went offline are not kept", true},
	{metaSettings, "the settings of the configuration", "it is not known which settings have changed since", false},
	{metaMemory, "the memory of the NUMA nodes", "it is not known whether the memory has changed since", true},
	{metaReservation, "the reserved CPUs", "the configuration alone decides which CPUs are reserved", true},
	{metaClaims, "what resource claims may have", "it is not known whether that has changed since", true},
	{metaTakenPages, "the huge pages that pods cannot have", "they count as free until they are counted again", true},
}

func factOf(key string) *metaFact {
	for i := range metaFacts {
		if metaFacts[i].key == key {
			return &metaFacts[i]
		}
	}
	return nil
}

// renewed lists the damaged facts with the consequences, as sentences.
func (st *state) renewed() (lines []string) {
	for _, f := range metaFacts {
		err := st.unread[f.key]
		switch {
		case err == nil:
		case f.key == metaMachine && st.topology != nil:
			lines = append(lines, fmt.Sprintf("%s/%s, %s at the last commit: %v; it follows from %[1]s/%[5]s", BucketMeta, f.key, f.of,
				err, metaTopology))
		default:
			lines = append(lines, fmt.Sprintf("%s/%s, %s at the last commit: %v; %s", BucketMeta, f.key, f.of, err, f.without))
		}
	}
	return lines
}

// noRules returns why the rules of the last commit, and so the states before it, are not known; nil
// if they are.
func (st *state) noRules() error {
	for _, f := range metaFacts {
		err := st.unread[f.key]
		if err != nil && f.rule && (f.key != metaMachine || st.topology == nil) {
			return fmt.Errorf("%s/%s, %s at the last commit: %w", BucketMeta, f.key, f.of, err)
		}
	}
	return nil
}
