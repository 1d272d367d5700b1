# SPDX-License-Identifier: BSL-1.0
# PROGRAM --help | awk -v name=PROGRAM -v version=VERSION -f man_page.awk: the page of the manual, section 1, that says what --help says.
#
# What --help prints: paragraphs that say what the program does; usage; titles of sections, each above lines that are indented by
# two: an option, its argument and, from column 35 on, what it means. What an option may name stands in two columns further to the right.

function plain(text) {
  gsub(/\\/, "\\e", text)
  gsub(/-/, "\\-", text)
  sub(/^\./, "\\\\\\&.", text)
  sub(/^'/, "\\\\\\&'", text)
  return text
}

# Two columns with two spaces or more between them.
function two_columns(text) {
  if (!match(text, /  +/)) {
    left = text
    right = ""
    return
  }
  left = substr(text, 1, RSTART - 1)
  right = substr(text, RSTART + RLENGTH)
}

function end_list() {
  if (in_list) print ".RE"
  in_list = 0
}

function end_code() {
  if (in_code) print ".fi"
  in_code = 0
}

NR == 1 {
  printf ".TH %s 1 \"\" \"Espalier %s\"\n.ad l\n.SH NAME\n%s \\- ", toupper(name), version, name
  first = $0
  while (first !~ /[.:]( |$)/ && (getline line) > 0) first = first " " line
  match(first, /[.:]( |$)/)
  print plain(tolower(substr(first, 1, 1)) substr(first, 2, RSTART - 2)) "\n.SH DESCRIPTION\n" plain(first)
  next
}
{
  match($0, /^ */)
  indent = RLENGTH
}
# A line after an empty one is a title if the next line is indented.
waiting != "" {
  end_list()
  end_code()
  if (indent > 0) sub(/:$/, "", waiting)
  print (indent > 0 ? ".SH " : ".PP\n") plain(waiting)
  waiting = ""
}
/^usage: / {
  print ".SH SYNOPSIS\n" plain(substr($0, 8))
  next
}
/^$/ {
  after_empty = 1
  next
}
/^[^ ]/ && after_empty {
  waiting = $0
  after_empty = 0
  next
}
/^  -/ {
  end_list()
  end_code()
  two_columns(substr($0, 3))
  print ".TP\n.B " plain(left)
  if (right != "") print plain(right)
  in_option = 1
  next
}
indent == 36 && in_option {
  two_columns(substr($0, 37))
  if (right != "") {
    if (!in_list) print ".RS"
    in_list = 1
    print ".TP 20\n.B " plain(left) "\n" plain(right)
    next
  }
}
indent >= 34 && in_option {
  if (indent == 34) end_list()
  print plain(substr($0, indent + 1))
  next
}
indent > 0 && !in_code {
  print ".nf"
  in_code = 1
  in_option = 0
}
{ print plain($0) }
