# SPDX-License-Identifier: BSL-1.0
# awk -f filter.awk header.hpp: the header as Doxygen is to read it. Comments that begin with //! get Doxygen's
# commands for what their layout says:
#
#   Law         a word of the list below, two spaces, a text that may go on in lines that are indented as far: a section
#   Optional    alone on its line, before indented lines: a section whose lines stay as they are
#       code    indented by four: code
#     lines     indented by less: as they are, but for lists
#
# Elsewhere a backslash and a < are what they are. A comment before an empty line is about the file.

function is_word(text) { return text ~ /^(Shapes|Complexity|Laws?|Errors|Source|Pre|Post|Models)$/ }

# The text of a line of the comment, without what begins it.
function text_of(line) {
  sub(/^ *\/\/! ?/, "", line)
  return line
}

function emit(text) { print "//! " text }

# The text of which Doxygen takes nothing for a command of its own, or for a tag, but code between backticks.
function escaped(text,    parts, n, i, result) {
  n = split(text, parts, "`")
  for (i = 1; i <= n; ++i) {
    if (i % 2) {
      gsub(/\\/, "&&", parts[i])
      gsub(/</, "\\<", parts[i])
    }
    result = result (i > 1 ? "`" : "") parts[i]
  }
  return result
}

function close_block() {
  if (block != "") emit("@endcode")
  block = ""
}

# Lines that stay as they are: code, or not.
function open_block(name) {
  if (block == name) return
  close_block()
  emit("@code" name)
  block = name
}

# Plain text; the first sentence of a comment is its brief description.
function write_text(text) {
  if (in_brief && match(text, /\. /)) {
    emit(brief escaped(substr(text, 1, RSTART)))
    emit("")
    text = substr(text, RSTART + 2)
    brief = ""
    in_brief = 0
  }
  emit(brief escaped(text))
  brief = ""
}

function write_line(text,    n, word, rest, indent) {
  match(text, /^ */)
  indent = RLENGTH
  n = match(text, /  /)
  word = n ? substr(text, 1, n - 1) : text
  if (is_word(word) || text ~ /^(Minimal definition|Optional)/ && !n) {
    close_block()
    rest = n ? substr(text, n) : ""
    sub(/^ */, "", rest)
    in_brief = 0
    emit("@par " word)
    if (rest != "") emit(escaped(rest))
    in_list = 0
    section = rest != "" || word ~ /^(Laws?|Models|Errors)$/ ? "text" : "lines"
  } else if (text == "") {
    close_block()
    section = ""
    in_brief = in_list = 0
    emit("")
  } else if (section == "text" && indent > 0) {
    sub(/^ */, "", text)
    # A line with columns of its own begins anew.
    emit((text ~ /[^ ]  +[^ ]/ ? "<br>" : "") escaped(text))
  } else if (text ~ /^ *(-|[0-9]+\.) / || (in_list && indent > 0)) {
    close_block()
    in_list = 1
    emit(escaped(text))
  } else if (indent >= 4 && (after_empty || block == "{.cpp}")) {
    open_block("{.cpp}")
    emit(substr(text, 5))
  } else if (indent > 0) {
    open_block("{.unparsed}")
    emit(substr(text, 3))
  } else {
    close_block()
    section = ""
    if (in_list) emit("")
    in_list = 0
    write_text(text)
  }
  after_empty = text == ""
}

function write_comment(of_file,    i) {
  if (n_lines == 0) return
  if (of_file) emit("@file")
  brief = "@brief "
  in_brief = 1
  for (i = 1; i <= n_lines; ++i) write_line(lines[i])
  close_block()
  section = ""
  after_empty = in_list = n_lines = 0
}

NR == 1 { print "//! @file"; next }
/^ *\/\/!( |$)/ {
  lines[++n_lines] = text_of($0)
  next
}
{
  write_comment($0 ~ /^ *$/)
  print
}
END { write_comment(0) }
