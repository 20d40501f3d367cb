// Package archtest holds the tests of the project's own rules: which package may
// import which, what managers/ must not do, what has to be documented, and how
// long a file may be. (For which systems the pure part must build is checked in
// hack/verify.sh: a build of everything is no test's business.)
//
// The import rules are the depguard section of .golangci.yml, and nothing
// else: the linter reads it, and so do these tests. The tests are there
// because the linter sees only the files of the system it runs on, and because
// it is silent about a rule that no longer matches anything: a folder that was
// renamed, a module that was replaced. Here such a rule is an error.
//
// Words: a room is a folder with a package in it; a finding is one breach, as
// "file:line: what is wrong".
package archtest
