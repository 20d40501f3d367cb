package errdefs

import (
	"errors"
	"iter"
	"maps"
	"slices"
)

// Code names a failure for programs. The codes are those of berth.errors.v1.ErrorReason, where each is described.
type Code string

// The codes that errors are given where they arise; others follow from the class.
const (
	ContainerIDBound      Code = "CONTAINER_ID_BOUND"
	AdmissionIDUsed       Code = "ADMISSION_ID_USED"
	PodNotFound           Code = "POD_NOT_FOUND"
	ContainerNotFound     Code = "CONTAINER_NOT_FOUND"
	ResourceNotFound      Code = "RESOURCE_NOT_FOUND"
	ProviderNotFound      Code = "PROVIDER_NOT_FOUND"
	TraceNotFound         Code = "TRACE_NOT_FOUND"
	CgroupNotFound        Code = "CGROUP_NOT_FOUND"
	ProcessNotFound       Code = "PROCESS_NOT_FOUND"
	PodSpecDiffers        Code = "POD_SPEC_DIFFERS"
	OwnerDiffers          Code = "OWNER_DIFFERS"
	ContainerIDsExhausted Code = "CONTAINER_IDS_EXHAUSTED"
	ImportContradicts     Code = "IMPORT_CONTRADICTS"
	AllocationsContradict Code = "ALLOCATIONS_CONTRADICT"
	ResourceInUse         Code = "RESOURCE_IN_USE"
	ResourceServed        Code = "RESOURCE_SERVED"
	RevisionUnknown       Code = "REVISION_UNKNOWN"
	SharedPoolEmpty       Code = "SHARED_POOL_EMPTY"
	LedgerUncertain       Code = "LEDGER_UNCERTAIN"
	LedgerUnavailable     Code = "LEDGER_UNAVAILABLE"
	PluginAway            Code = "PLUGIN_AWAY"
	PluginFailed          Code = "PLUGIN_FAILED"
	ProviderFailed        Code = "PROVIDER_FAILED"
	ShuttingDown          Code = "SHUTTING_DOWN"
	RoleMissing           Code = "ROLE_MISSING"
	OwnerNotPermitted     Code = "OWNER_NOT_PERMITTED"
	TooManyCalls          Code = "TOO_MANY_CALLS"
	UnsupportedPodField   Code = "UNSUPPORTED_POD_FIELD"
	HistoryNotKept        Code = "HISTORY_NOT_KEPT"
)

// given are the codes above.
var given = [...]Code{
	ContainerIDBound,
	AdmissionIDUsed,
	PodNotFound,
	ContainerNotFound,
	ResourceNotFound,
	ProviderNotFound,
	TraceNotFound,
	CgroupNotFound,
	ProcessNotFound,
	PodSpecDiffers,
	OwnerDiffers,
	ContainerIDsExhausted,
	ImportContradicts,
	AllocationsContradict,
	ResourceInUse,
	ResourceServed,
	RevisionUnknown,
	SharedPoolEmpty,
	LedgerUncertain,
	LedgerUnavailable,
	PluginAway,
	PluginFailed,
	ProviderFailed,
	ShuttingDown,
	RoleMissing,
	OwnerNotPermitted,
	TooManyCalls,
	UnsupportedPodField,
	HistoryNotKept,
}

// codes are those of a class by itself.
var codes = [...]Code{
	Internal:         "INTERNAL_ERROR",
	Invalid:          "REQUEST_INVALID",
	NotFound:         "OBJECT_NOT_FOUND",
	Exists:           "OBJECT_EXISTS",
	Refused:          "POD_REJECTED",
	Conflict:         "STATE_MOVED",
	Precondition:     "PRECONDITION_FAILED",
	Unsupported:      "NOT_SUPPORTED",
	Unavailable:      "TEMPORARILY_UNAVAILABLE",
	Exhausted:        "LIMIT_EXCEEDED",
	PermissionDenied: "NOT_PERMITTED",
	Deadline:         "TIMED_OUT",
	Canceled:         "CALL_CANCELED",
	Corrupt:          "DATA_CORRUPT",
	Gone:             "REVISION_COMPACTED",
}

const podDeferred Code = "POD_DEFERRED"

// conditions are the codes of what a deferred pod waits for, by the reason; all others are POD_DEFERRED.
var conditions = map[Reason]Code{
	"StateUncertain": LedgerUncertain,
	"PluginAway":     PluginAway,
}

// Coded gives the error a code, and metadata as pairs of key and value, and returns it.
func (e *Error) Coded(code Code, metadata ...string) *Error {
	e.Code = code
	for i := 0; i+1 < len(metadata); i += 2 {
		if e.Metadata == nil {
			e.Metadata = map[string]string{}
		}
		e.Metadata[metadata[i]] = metadata[i+1]
	}
	return e
}

// CodeOf returns the code of an error, which is of a class: the one that it was given or, where it wraps an error of the
// same class, that one's; else that of the class. Metadata are those of the error with the code.
func CodeOf(err error, class Class) (Code, map[string]string) {
	for e := new(Error); errors.As(err, &e); err = e.Err {
		switch {
		case e.Class != class:
		case e.Code != "":
			return e.Code, e.Metadata
		case e.Reason != "" && class == Unavailable:
			if code, ok := conditions[e.Reason]; ok {
				return code, e.Metadata
			}
			return podDeferred, e.Metadata
		}
	}
	if class < 0 || int(class) >= len(codes) {
		class = Internal
	}
	return codes[class], nil
}

// Codes yields every code that an error can have, in no order, some of them more than once.
func Codes() iter.Seq[Code] {
	return func(yield func(Code) bool) {
		for _, list := range [][]Code{given[:], codes[:], slices.Collect(maps.Values(conditions)), {podDeferred}} {
			for _, c := range list {
				if !yield(c) {
					return
				}
			}
		}
	}
}
