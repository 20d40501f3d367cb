// Package berth is the Go client of berthd.
//
// Dial gives a Client; its methods make the calls of an agent, and its accessors give the generated clients of the services:
//
//	client, err := berth.Dial(ctx, "", berth.Options{})
//	if err != nil { ... }
//	defer client.Close()
//	answer, err := client.AdmitPod(ctx, pod)
//
// Words:
//
//   - endpoint: where berthd listens, a path or unix:///path.
//   - ready: berthd answers, and its health service reports SERVING.
//   - revision: how far the ledger has come; see Sync.
//   - admission id: the caller's name for one attempt to admit a pod. What carries the same one again is the same attempt.
//
// Invariants: every error of a call is an *Error, also of calls through the generated clients; a rejected pod is an answer
// and no error; nothing is repeated on the caller's behalf but Admit, whose
// admission id makes that safe, and Sync, whose list is made again.
package berth
